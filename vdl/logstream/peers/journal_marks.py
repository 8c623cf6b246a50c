"""Directories that are not what their peers remember: restored from an old copy, or copied.

Each server tells its peers which starts its directory has seen, and how far its journal is durable
(`rpc/journal_marks.py`). A peer keeps the newest of that, the *mark*, in memory at once and on disk
from time to time. When two servers are linked, each sends what it remembers of the other's
directory, before anything else. By that both judge the same:

* A directory whose journal lacks what its mark says has forgotten what it acknowledged, whom it
  voted for, and which replicas it made. Its server marks all its replicas as lost, durably, and has
  it be another directory. So the catalog replaces all of them, as those of a wiped one. Peers take
  nothing from it until then.
* Of two processes in copies of one directory, what one of them acknowledged the other lacks. While
  the first one is linked, the second one is refused (`rpc/links.py`). When it is gone, the second
  one's directory is of the past, like any other copy.

A server that has started takes no part before it was compared with every other server, or an
election timeout has passed: those that do not run, or cannot be reached, must not hold up the
others. A peer that comes later tells it then.

Not found: a directory of which no peer that remembers it runs any more; what was acknowledged
after the last heartbeat; a directory that was started more than `BOOTS_MAX` times since.

Must not know: replicas, what it costs to lose them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ids import DirectoryId, ServerId
from rpc.errors import MalformedFrame
from rpc.hello import VERSION_OF_BOOTS, Hello, RejectReason
from rpc.journal_marks import (
    BootRow,
    Remembered,
    decode_boots,
    decode_journal,
    decode_remembered,
    encode_boots,
    encode_journal,
    encode_remembered,
)
from rpc.peer import FrameType
from segments.api import Store
from segments.boots import GOES_ON, Boot, JournalMark, is_behind
from vdl.clock import MS
from vdl.logstream.options import TICK_NS
from vdl.logstream.state import HostState
from vdl.state.table import decode_value

MARKS_MAX = 64
"""Directories that are remembered: far more than a set has servers."""
NOTE_NS = 5_000 * MS
"""How often marks that have moved on are noted on disk. New starts are noted within a second."""


def boots_info(store: Store) -> bytes:
    """What this server's HELLO says of its directory."""
    return encode_boots([BootRow(b.number, b.boot_id, b.end_lsn) for b in store.boots])


class _Noted(msgspec.Struct, frozen=True, array_like=True):
    """One directory's mark, as it is noted on disk."""

    directory_id: bytes
    number: int
    boot_id: int
    lsn: int


class JournalMarks:
    """One server's part in it."""

    __slots__ = (
        "_awaited", "_is_changed", "_lose", "_lost", "_marks", "_noted_ns", "_open", "_sent",
        "_state", "behind",
    )  # fmt: skip

    def __init__(self, state: HostState, lose: Callable[[], None]) -> None:
        """`lose`: have no replica here take part any more; their logs are being marked as lost."""
        self._state = state
        self._lose = lose
        self._marks: dict[DirectoryId, JournalMark] = marks_of(state.store.peers_note())
        """Newest last."""
        self._is_changed = False
        self._noted_ns = state.clock.now_ns()
        self._awaited: set[ServerId] = set()
        """Servers that this one was not compared with yet. Empty once it takes part."""
        self._open: Callable[[], None] = _nothing
        self._sent: dict[ServerId, int] = {}
        """By linked server: the LSN that it was sent last."""
        self.behind: set[ServerId] = set()
        """Linked servers whose directory lacks what is remembered of it: nothing they say counts.
        """
        self._lost = 0
        """The number of the mark for which this directory was given up; 0: it was not."""

    # --- a start --------------------------------------------------------------------------------
    def compare_first(self, take_part: Callable[[], None]) -> None:
        """Call `take_part` once no server that can be reached is left to be compared with. Also for
        a directory without logs: that is what a copy of it holds that was made before they were."""
        state = self._state
        voters = {server for server, _ in state.record.initial_voters}
        self._awaited = voters - {state.server_id}
        if not self._awaited:
            take_part()
            return
        self._open = take_part
        state.clock.call_later(state.options.election_ticks * TICK_NS, self._compared)

    def _compared(self, server_id: ServerId | None = None) -> None:
        """With that server; None: those that are left are not waited for any more."""
        if server_id is None:
            self._awaited.clear()
        self._awaited.discard(server_id or ServerId(0))
        if not self._awaited and not self._state.outbox.is_closed:
            take_part, self._open = self._open, _nothing
            take_part()

    # --- links ----------------------------------------------------------------------------------
    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        """Why a server that greets is not the one whose directory it has; None: it is."""
        owner = self._owner_of(hello.directory_id)
        if owner not in (None, hello.server_id):
            return (
                RejectReason.FOREIGN_DIRECTORY,
                f"{hello.directory_id.hex()} is the data directory of server {owner}, "
                f"not of server {hello.server_id}",
            )
        return None

    def _owner_of(self, directory_id: DirectoryId) -> ServerId | None:
        """The server whose directory that is, as far as is known here."""
        state = self._state
        if directory_id == state.store.directory_id:
            return state.server_id
        voters = {server for server, _ in state.record.initial_voters}
        for server in sorted(voters | state.catalog.servers.keys()):
            if state.catalog.directory_of(server) == directory_id:
                return server
        return None

    def link_up(self, hello: Hello) -> None:
        """A new link: say what is remembered, and judge by it."""
        server = hello.server_id
        self._sent[server] = -1
        self.behind.discard(server)
        if self._is_behind(hello):
            self.behind.add(server)
            self._tell_of_peer(hello)
        else:
            self._remember(hello, 0)
        if hello.version < VERSION_OF_BOOTS:
            self._compared(server)
            return
        mark = self._marks.get(hello.directory_id)
        remembered = Remembered(hello.directory_id)
        if mark is not None:
            remembered = Remembered(hello.directory_id, mark.number, mark.boot_id, mark.lsn)
        self._state.transport.send(
            server, FrameType.REMEMBERED, encode_remembered(remembered), urgent=True
        )

    def unborn(self, server_id: ServerId) -> None:
        """A link to a server without a cluster: it remembers nothing."""
        self._compared(server_id)

    def link_down(self, server_id: ServerId) -> None:
        """Who comes next on it is judged anew."""
        self._sent.pop(server_id, None)
        self.behind.discard(server_id)

    def beat(self, server_id: ServerId) -> None:
        """A heartbeat is due: say how far the journal is durable, if that is news."""
        state = self._state
        hello, lsn = state.alive[server_id], state.store.durable_lsn
        if hello.version < VERSION_OF_BOOTS or self._sent.get(server_id, lsn) == lsn:
            return
        boots = state.store.boots
        is_noted = boots and boots[-1].end_lsn == GOES_ON
        if is_noted and state.transport.send(server_id, FrameType.JOURNAL, encode_journal(lsn)):
            self._sent[server_id] = lsn

    def journal_received(self, server_id: ServerId, payload: memoryview) -> None:
        """A JOURNAL frame. Raises MalformedFrame."""
        lsn = decode_journal(payload)
        hello = self._state.alive.get(server_id)
        if hello is not None and server_id not in self.behind:
            self._remember(hello, lsn)

    def remembered_received(self, server_id: ServerId, payload: memoryview) -> None:
        """A REMEMBERED frame. Raises MalformedFrame."""
        remembered = decode_remembered(payload)
        state = self._state
        if remembered.directory_id != state.store.directory_id:
            return  # it is given up: the link is about to end
        mark = JournalMark(remembered.number, remembered.boot_id, remembered.lsn)
        if mark.number and is_behind(state.store.boots, mark):
            self._give_up(server_id, mark)
        self._compared(server_id)

    # --- judging --------------------------------------------------------------------------------
    def _is_behind(self, hello: Hello) -> bool:
        """What is listed in a form that is not known here says nothing: the peer judges itself."""
        mark, boots = self._marks.get(hello.directory_id), _boots_of(hello)
        return mark is not None and boots is not None and is_behind(boots, mark)

    def _remember(self, hello: Hello, lsn: int) -> None:
        """`lsn`: up to which its journal is durable, as it has said; 0: that is not known yet."""
        boots = _boots_of(hello)
        if not boots or boots[-1].end_lsn != GOES_ON:
            return
        mark = JournalMark(boots[-1].number, boots[-1].boot_id, lsn)
        known = self._marks.pop(hello.directory_id, None)
        if known is not None and known.boot_id == mark.boot_id and known.lsn > lsn:
            mark = known
        self._is_changed |= mark != known
        if known is None or known.boot_id != mark.boot_id:
            self._noted_ns = -NOTE_NS
        self._marks[hello.directory_id] = mark
        while len(self._marks) > MARKS_MAX:
            del self._marks[next(iter(self._marks))]

    def _give_up(self, server_id: ServerId, mark: JournalMark) -> None:
        """What a peer remembers is not here: nothing here may be relied upon."""
        state = self._state
        if self._lost >= mark.number:
            return  # it is under way
        self._lost = mark.number
        store = state.store
        end_lsn, number = _end_of(store, mark.number)
        state.log.error(
            "directory_from_the_past",
            told_by=server_id,
            remembered_boot=mark.number,
            remembered_lsn=mark.lsn,
            boot=number,
            lsn=end_lsn,
            logs=len(store.logs),
            meaning="this data directory was restored from an old copy, is a copy, or its disk lost"
            " what it had synced: it lacks what it acknowledged, so all its replicas are lost",
        )
        store.give_up(self._given_up)
        self._lose()

    def _given_up(self) -> None:
        """All is marked: peers may take what this directory, another one, says from now on."""
        if not self._state.outbox.is_closed:
            self._state.front.directory_given_up()

    def _tell_of_peer(self, hello: Hello) -> None:
        mark, boots = self._marks[hello.directory_id], _boots_of(hello) or []
        self._state.log.error(
            "peer_from_the_past",
            server=hello.server_id,
            directory=hello.directory_id.hex(),
            remembered_boot=mark.number,
            remembered_lsn=mark.lsn,
            boots=",".join(f"{boot.number}:{boot.end_lsn}" for boot in boots[-3:-1]),
            meaning="its data directory was restored from an old copy, is a copy, or its disk lost"
            " what it had synced: its replicas count as lost",
        )

    # --- on disk --------------------------------------------------------------------------------
    def look(self) -> None:
        """Each second: note on disk what has changed, now and then."""
        if self._state.clock.now_ns() - self._noted_ns >= NOTE_NS:
            self.note()

    def note(self) -> None:
        """Note what has changed."""
        self._noted_ns = self._state.clock.now_ns()
        if self._is_changed:
            self._is_changed = False
            self._state.store.note_peers(_encode(self._marks))


def _end_of(store: Store, number: int) -> tuple[int, int]:
    """(LSN, number of the boot) at which the directory's own past ends, up to that boot."""
    for boot in reversed(store.boots):
        if boot.number <= number and boot.end_lsn != GOES_ON:
            return boot.end_lsn, boot.number
    return 0, 0


def _boots_of(hello: Hello) -> list[Boot] | None:
    """As its HELLO lists them; None: in a form that is not known here. A version that lists none
    opens no directory that a later one has opened, but for an older copy of it: that has none."""
    if hello.version < VERSION_OF_BOOTS:
        return []
    try:
        return [Boot(*row) for row in decode_boots(hello.info)]
    except MalformedFrame:
        return None


def _encode(marks: dict[DirectoryId, JournalMark]) -> bytes:
    rows = [_Noted(d, mark.number, mark.boot_id, mark.lsn) for d, mark in marks.items()]
    return msgspec.msgpack.encode(rows)


def marks_of(note: bytes) -> dict[DirectoryId, JournalMark]:
    """What a note on disk says, oldest first. One that cannot be read says nothing."""
    if not note:
        return {}
    try:
        rows = decode_value(note, list[_Noted])
    except msgspec.DecodeError:
        return {}
    return {DirectoryId(r.directory_id): JournalMark(r.number, r.boot_id, r.lsn) for r in rows}


def _nothing() -> None:
    """This server takes part already."""
