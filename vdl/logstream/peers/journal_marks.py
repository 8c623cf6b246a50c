"""Detection of data directories that were restored from an old copy, or copied.

Each server reports to its peers the starts of its directory, and how far its journal is durable
(`rpc/journal_marks.py`). A peer keeps the newest report, the *mark*, in memory at once and on disk
from time to time. When two servers are linked, each first sends the mark that it has of the other's
directory. With it both come to the same result:

* A directory whose journal lacks what its mark covers has lost acknowledgements, votes, and the
  record of the replicas it created. Its server marks all its replicas as lost, durably, and gives
  the directory another id. So the catalog replaces all of them, as those of a wiped directory.
  Peers take no messages from it until then.
* If two processes run in copies of one directory, each lacks what the other acknowledged. While the
  first one is linked, the second one is refused (`rpc/links.py`). When it is gone, the second one's
  directory is out of date, like any other copy.

A starting server takes no part before it was compared with every voter of the catalog, as its disk
knows them (`membership/known_servers.py`), or an election timeout has passed: servers that do not
run, or cannot be reached, must not delay the others. A peer that is linked later reports its mark
then.

Not detected: a directory whose mark no running peer has; entries acknowledged after the last
heartbeat; a directory that was started more than `BOOTS_MAX` times since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

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
"""Maximum number of directories with a mark: far more than a cluster has servers."""
NOTE_NS = 5_000 * MS
"""Interval at which changed marks are written to disk. New starts are written within a second."""


def boots_info(store: Store) -> bytes:
    """Return the part of this server's HELLO about its directory."""
    return encode_boots([BootRow(b.number, b.boot_id, b.end_lsn) for b in store.boots])


class _Noted(msgspec.Struct, frozen=True, array_like=True):
    """One directory's mark, as written to disk."""

    directory_id: bytes
    number: int
    boot_id: int
    lsn: int


class JournalMarks:
    """Journal marks of one server."""

    __slots__ = (
        "_awaited", "_is_changed", "_lose", "_lost", "_marks", "_noted_ns", "_open", "_sent",
        "_state", "behind",
    )  # fmt: skip

    def __init__(self, state: HostState, lose: Callable[[], None]) -> None:
        """Load the marks. `lose`: stops all replicas here; their logs are being marked as lost."""
        self._state = state
        self._lose = lose
        self._marks: dict[DirectoryId, JournalMark] = marks_of(state.store.peers_note())
        """Newest last."""
        self._is_changed = False
        self._noted_ns = state.clock.now_ns()
        self._awaited: set[ServerId] = set()
        """Servers with which this one was not compared yet. Empty once it takes part."""
        self._open: Callable[[], None] = _nothing
        self._sent: dict[ServerId, int] = {}
        """By linked server: the LSN that was last sent to it."""
        self.behind: set[ServerId] = set()
        """Linked servers whose directory lacks what its mark covers: their messages are ignored."""
        self._lost = 0
        """Number of the mark for which this directory was retired; 0: none."""

    # --- start ----------------------------------------------------------------------------------
    def compare_first(self, take_part: Callable[[], None], voters: Collection[ServerId]) -> None:
        """Call `take_part` once every reachable one of these servers was compared with this one.

        Also for a directory without logs: it may be a copy made before they were created.
        """
        state = self._state
        self._awaited = set(voters) - {state.server_id}
        if not self._awaited:
            take_part()
            return
        self._open = take_part
        state.clock.call_later(state.options.election_ticks * TICK_NS, self._compared)

    def _compared(self, server_id: ServerId | None = None) -> None:
        """Note a comparison with a server; None: wait for no more servers."""
        if server_id is None:
            self._awaited.clear()
        self._awaited.discard(server_id or ServerId(0))
        if not self._awaited and not self._state.outbox.is_closed:
            take_part, self._open = self._open, _nothing
            take_part()

    # --- links ----------------------------------------------------------------------------------
    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        """Return why a server does not own its directory; None: it does."""
        owner = self._owner_of(hello.directory_id)
        if owner not in (None, hello.server_id):
            return (
                RejectReason.FOREIGN_DIRECTORY,
                f"{hello.directory_id.hex()} is the data directory of server {owner}, "
                f"not of server {hello.server_id}",
            )
        return None

    def _owner_of(self, directory_id: DirectoryId) -> ServerId | None:
        """Return the server that owns a directory, as far as is known here."""
        state = self._state
        if directory_id == state.store.directory_id:
            return state.server_id
        catalog = state.catalog
        members = catalog.first_servers.keys() | catalog.servers.keys() | catalog.added.keys()
        for server in sorted(members):
            if state.catalog.directory_of(server) == directory_id:
                return server
        return None

    def link_up(self, hello: Hello) -> None:
        """Start a link: send the mark of the server's directory, and judge it."""
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
        """Note a link to a server without a cluster, which has no marks."""
        self._compared(server_id)

    def link_down(self, server_id: ServerId) -> None:
        """End a link: the next process on it is judged anew."""
        self._sent.pop(server_id, None)
        self.behind.discard(server_id)

    def beat(self, server_id: ServerId) -> None:
        """Report at a heartbeat how far the journal is durable, if that changed."""
        state = self._state
        hello, lsn = state.alive[server_id], state.store.durable_lsn
        if hello.version < VERSION_OF_BOOTS or self._sent.get(server_id, lsn) == lsn:
            return
        boots = state.store.boots
        is_noted = boots and boots[-1].end_lsn == GOES_ON
        if is_noted and state.transport.send(server_id, FrameType.JOURNAL, encode_journal(lsn)):
            self._sent[server_id] = lsn

    def journal_received(self, server_id: ServerId, payload: memoryview) -> None:
        """Take a JOURNAL frame. Raise MalformedFrame if it is malformed."""
        lsn = decode_journal(payload)
        hello = self._state.alive.get(server_id)
        if hello is not None and server_id not in self.behind:
            self._remember(hello, lsn)

    def remembered_received(self, server_id: ServerId, payload: memoryview) -> None:
        """Take a REMEMBERED frame. Raise MalformedFrame if it is malformed."""
        remembered = decode_remembered(payload)
        state = self._state
        if remembered.directory_id != state.store.directory_id:
            return  # this directory was retired: the link is about to end
        mark = JournalMark(remembered.number, remembered.boot_id, remembered.lsn)
        if mark.number and is_behind(state.store.boots, mark):
            self._give_up(server_id, mark)
        self._compared(server_id)

    # --- judging --------------------------------------------------------------------------------
    def _is_behind(self, hello: Hello) -> bool:
        """Return True if the peer's directory lacks what its mark covers.

        False if its list of starts has an unknown format: then the peer judges itself.
        """
        mark, boots = self._marks.get(hello.directory_id), _boots_of(hello)
        return mark is not None and boots is not None and is_behind(boots, mark)

    def _remember(self, hello: Hello, lsn: int) -> None:
        """Update the mark of a peer's directory.

        `lsn`: reported end of its durable journal; 0: unknown.
        """
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
        """Retire this directory: it lacks what a peer's mark covers, so its data are unreliable."""
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
            meaning=(
                "the data directory was restored from an old copy, is a copy, or its disk "
                "lost synced data; acknowledged data is missing, so all its replicas are lost"
            ),
        )
        store.give_up(self._given_up)
        self._lose()

    def _given_up(self) -> None:
        """Open new links under the new directory id, now that all logs are marked."""
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
            meaning=(
                "its data directory was restored from an old copy, is a copy, or its disk "
                "lost synced data; its replicas count as lost"
            ),
        )

    # --- on disk --------------------------------------------------------------------------------
    def look(self) -> None:
        """Write changed marks to disk, if the interval has passed. Use: once a second."""
        if self._state.clock.now_ns() - self._noted_ns >= NOTE_NS:
            self.note()

    def note(self) -> None:
        """Write the marks to disk if they changed."""
        self._noted_ns = self._state.clock.now_ns()
        if self._is_changed:
            self._is_changed = False
            self._state.store.note_peers(_encode(self._marks))


def _end_of(store: Store, number: int) -> tuple[int, int]:
    """Return (LSN, boot number) of the end of the directory's own past, up to boot `number`."""
    for boot in reversed(store.boots):
        if boot.number <= number and boot.end_lsn != GOES_ON:
            return boot.end_lsn, boot.number
    return 0, 0


def _boots_of(hello: Hello) -> list[Boot] | None:
    """Return the starts listed in a HELLO; None: in an unknown format.

    A version that lists none cannot open a directory that a later one has opened, except an older
    copy of it, which has no starts.
    """
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
    """Return the marks in a note from disk, oldest first; none if it is unreadable."""
    if not note:
        return {}
    try:
        rows = decode_value(note, list[_Noted])
    except msgspec.DecodeError:
        return {}
    return {DirectoryId(r.directory_id): JournalMark(r.number, r.boot_id, r.lsn) for r in rows}


def _nothing() -> None:
    """Do nothing: this server takes part already."""
