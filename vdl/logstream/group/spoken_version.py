"""Checks of the protocol versions that the servers of a group's members speak.

A replica that cannot apply a command stops. So a leader proposes a command of a newer version only
while all members are known to speak it. A server that is away may return with an older version.

Some behaviour is accepted by replicas of an older version, but handled differently once such a
replica leads. A leader of a newer version avoids it while a member is known to be of an older
version: that is, while servers are upgraded one by one. A server that is away does not count then.
"""

from __future__ import annotations

from collections.abc import Mapping

from ids import ServerId
from rpc.hello import Hello
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of


def members_speak(
    version: int, group: Group, alive: Mapping[ServerId, Hello], server_id: ServerId
) -> bool:
    """Return True if all members speak `version`.

    `alive`: the servers linked now; `server_id`: this server.
    """
    for replica in group.members:
        other = server_of(replica)
        if other == server_id:
            continue
        hello = alive.get(other)
        if hello is None or hello.version < version:
            return False
    return True


def speaks_less(version: int, group: Group, alive: Mapping[ServerId, Hello]) -> bool:
    """Return True if a linked member speaks less than `version`.

    `alive`: the servers linked now.
    """
    linked = [alive.get(server_of(replica)) for replica in group.members]
    return any(hello is not None and hello.version < version for hello in linked)
