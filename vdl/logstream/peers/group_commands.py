"""Commands from one group to another, appended and answered by the receiving group's leader.

A transaction's coordinator reports its end to partitions and other coordinators; a partition
queries a coordinator for open transactions. Both have their leaders on different servers. Such a
command is sent to the leader of its group as far as it is known here, and sent again, to the leader
of that time, until it is answered or its deadline has passed. So it may be applied more than once,
and must do no harm then.

An answer names its command by a number only, and may come seconds later, after the link or the
process that sent the command was replaced. So numbers begin at random in each process
(`HostState.request_numbers`), and a leader answers only the process that sent the command.

Small commands and answers of a turn for one server leave at its end, in one frame of each kind: a
system call for each would cost more than the commands do.

Only commands that all servers understand may be sent: the caller first checks the finalised
features (`vdl/state/features.py`). Servers of older versions receive none.

Does not depend on what commands mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ids import GroupId, ServerId
from rpc.commands import (
    CommandDone,
    Fate,
    SentCommand,
    decode_command,
    decode_done,
    encode_command,
    encode_done,
    joined,
    split,
)
from rpc.hello import VERSION_OF_COMMANDS, VERSION_OF_JOINED_COMMANDS
from rpc.peer import FrameType
from rpc.reader import Buffer
from vdl.clock import MS, NEVER
from vdl.errors import ERRORS_BY_CODE, ErrorCode
from vdl.logstream.group.pending import Pending
from vdl.logstream.group.state_group import (
    COMMAND_BYTES_MAX,
    NOT_APPENDED,
    TOO_LARGE,
    UNKNOWN,
    Outcome,
    OutcomeKind,
)
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.state import commands
from vdl.state.answer import CommandAnswer

WAITING_MAX = 20_000
"""Maximum number of commands of this server without an answer; more are not taken."""

ANSWER_NS = 3_000 * MS
"""Time after which a command without an answer is sent again: its leader may have been deposed, or
its frame lost with a link."""

RETRY_NS = 50 * MS
"""Delay before a refused command is sent again: the server does not lead yet, or has no room."""

URGENT_BYTES = 4 << 10
"""Smaller commands are sent in the urgent lane, before entries."""

JOINED_MAX = 64
"""Maximum number of commands, or answers, in one frame."""

Receiver = Callable[[GroupId, Any, int, Callable[[Outcome], None]], None]
"""(group, command, deadline, done) for a coordinator that leads here."""


class _Sent(Pending[Outcome]):
    """A command without an answer."""

    __slots__ = ("again_ns", "data", "group_id", "is_open", "sent_to", "was_open")

    def __init__(
        self, group_id: GroupId, data: bytes, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        super().__init__(deadline_ns, done)
        self.group_id = group_id
        self.data = data
        self.is_open = False
        """True if it may be applied."""
        self.was_open = False
        """`is_open` before it was last sent."""
        self.sent_to = 0
        """The server that is to answer; 0: it is not sent at present."""
        self.again_ns = 0
        """Time at which it is sent again."""


class _Outgoing:
    """Commands and answers to be sent to one server."""

    __slots__ = ("answers", "commands")

    def __init__(self) -> None:
        self.commands: list[tuple[int, list[Buffer]]] = []
        """(number, payload)."""
        self.answers: list[list[Buffer]] = []


class GroupCommands:
    """The commands that one server sends to groups, and those it receives as their leader."""

    __slots__ = (
        "_again_timer_ns", "_due_ns", "_liveness", "_sent", "_state", "out", "receive",
    )  # fmt: skip

    def __init__(self, state: HostState, liveness: Liveness) -> None:
        self._state = state
        self._liveness = liveness
        self._sent: dict[int, _Sent] = {}
        self._due_ns = NEVER
        """Time before which none of them is due, so that thousands need not be checked each
        time."""
        self.out: dict[ServerId, _Outgoing] = {}
        """Output of the turn, by server. Use: `flush` while there is any."""
        self._again_timer_ns = NEVER
        self.receive: Receiver = self._propose
        """Handler of commands for a coordinator that leads here. The default proposes them
        unchanged."""

    def send(
        self, group_id: GroupId, data: bytes, *, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        """Have `data` appended by the leader of a group.

        It is a partition's command, or a coordinator's as encoded by `commands.encode_command`.
        `done` is called once, perhaps before this returns: APPLIED with a `CommandAnswer`;
        TOO_LARGE and NOT_APPENDED are certain; UNKNOWN at the deadline.
        """
        if group_id == CATALOG_GROUP or len(self._sent) >= WAITING_MAX:
            done(NOT_APPENDED)
        elif len(data) > COMMAND_BYTES_MAX:
            done(TOO_LARGE)
        else:
            number = next(self._state.request_numbers)
            self._sent[number] = _Sent(group_id, data, deadline_ns, done)
            self._try(number)

    @property
    def awaited(self) -> set[GroupId]:
        """Groups whose leaders have not answered a command sent to them."""
        return {sent.group_id for sent in self._sent.values() if sent.sent_to}

    def _try(self, number: int) -> None:
        sent = self._sent[number]
        state = self._state
        now_ns = state.clock.now_ns()
        leader, _ = self._liveness.leader_of(sent.group_id)
        until_ns = min(sent.deadline_ns, now_ns + ANSWER_NS)
        hello = state.alive.get(leader)
        if leader == state.server_id:
            self._note_sent(sent, leader, until_ns)

            def done(outcome: Outcome) -> None:
                self._ended(number, leader, outcome)

            self._deliver(sent.group_id, sent.data, until_ns, done)
            return
        if hello is not None and hello.version >= VERSION_OF_COMMANDS:
            left_ms = max(0, until_ns - now_ns) // MS
            frame = encode_command(SentCommand(number, sent.group_id, left_ms, sent.data))
            if len(sent.data) <= URGENT_BYTES:
                self._note_sent(sent, leader, until_ns)
                self._outgoing(leader).commands.append((number, frame))
                return
            if state.transport.send(leader, FrameType.COMMAND, frame):
                self._note_sent(sent, leader, until_ns)
                return
        self._wait(sent)

    def _outgoing(self, server_id: ServerId) -> _Outgoing:
        out = self.out.get(server_id)
        if out is None:
            out = self.out[server_id] = _Outgoing()
            self._state.outbox.schedule()
        return out

    def flush(self) -> None:
        """Send the turn's commands and answers. Called by the host."""
        out, self.out = self.out, {}
        for server_id, outgoing in out.items():
            commands, answers = outgoing.commands, outgoing.answers
            for start in range(0, len(commands), JOINED_MAX):
                some = commands[start : start + JOINED_MAX]
                payloads = [payload for _, payload in some]
                if not self._send(server_id, FrameType.COMMAND, FrameType.COMMANDS, payloads):
                    self._not_sent(server_id, [number for number, _ in some])
            for start in range(0, len(answers), JOINED_MAX):
                some_answers = answers[start : start + JOINED_MAX]
                # Answers that do not leave are missed, and their commands sent again.
                self._send(server_id, FrameType.COMMAND_DONE, FrameType.COMMANDS_DONE, some_answers)

    def _send(
        self,
        server_id: ServerId,
        single: FrameType,
        plural: FrameType,
        payloads: list[list[Buffer]],
    ) -> bool:
        """Send payloads. Return False if some of them did not leave."""
        hello, send = self._state.alive.get(server_id), self._state.transport.send
        if hello is None:
            return False
        if len(payloads) > 1 and hello.version >= VERSION_OF_JOINED_COMMANDS:
            return send(server_id, plural, joined(payloads), urgent=True)
        return all(send(server_id, single, payload, urgent=True) for payload in payloads)

    def _not_sent(self, server_id: ServerId, numbers: list[int]) -> None:
        for number in numbers:
            sent = self._sent.get(number)
            if sent is not None and sent.sent_to == server_id:
                # A peer of an older version may have received some of them.
                self._wait(sent)

    def _note_sent(self, sent: _Sent, leader: ServerId, until_ns: int) -> None:
        sent.sent_to = leader
        sent.was_open = sent.is_open
        sent.is_open = True
        sent.again_ns = until_ns
        self._due_ns = min(self._due_ns, until_ns)

    def _wait(self, sent: _Sent) -> None:
        """Have the command sent again after `RETRY_NS`."""
        now_ns = self._state.clock.now_ns()
        sent.sent_to = 0
        sent.again_ns = now_ns + RETRY_NS
        self._due_ns = min(self._due_ns, sent.again_ns, sent.deadline_ns)
        if self._again_timer_ns > sent.again_ns:
            self._again_timer_ns = sent.again_ns
            self._state.clock.call_later(RETRY_NS, self._again)

    def _again(self) -> None:
        self._again_timer_ns = NEVER
        if not self._state.outbox.is_closed:
            self.retry(self._state.clock.now_ns())

    def _ended(self, number: int, server_id: ServerId, outcome: Outcome) -> None:
        """Take a server's answer, possibly late."""
        sent = self._sent.get(number)
        if sent is None:
            return
        if outcome.kind is OutcomeKind.APPLIED:
            del self._sent[number]
            sent.done(outcome)
        elif sent.sent_to == server_id:
            if outcome.kind is OutcomeKind.TOO_LARGE:
                del self._sent[number]
                # An earlier leader may have appended it all the same.
                sent.done(UNKNOWN if sent.was_open else outcome)
                return
            if outcome.kind is OutcomeKind.NOT_APPENDED:
                sent.is_open = sent.was_open
            self._wait(sent)

    # --- frames ------------------------------------------------------------------------------
    def commands_received(self, from_server: ServerId, payload: memoryview) -> None:
        """As `command_received`, for several."""
        for one in split(payload):
            self.command_received(from_server, one)

    def answers_received(self, from_server: ServerId, payload: memoryview) -> None:
        """As `answer_received`, for several."""
        for one in split(payload):
            self.answer_received(from_server, one)

    def command_received(self, from_server: ServerId, payload: memoryview) -> None:
        """Take a peer's command for a group that leads here, as far as the peer knows.

        Raise MalformedFrame if it is malformed.
        """
        sent = decode_command(payload)
        request_id = sent.request_id
        asker = self._state.alive.get(from_server)

        def done(outcome: Outcome) -> None:
            if self._state.answers_reach(asker):
                self._answer(from_server, request_id, outcome)

        deadline_ns = self._state.clock.now_ns() + sent.timeout_ms * MS
        self._deliver(sent.group, bytes(sent.command), deadline_ns, done)

    def _answer(self, to_server: ServerId, request_id: int, outcome: Outcome) -> None:
        answer = outcome.result
        if outcome.kind is not OutcomeKind.APPLIED:
            done = CommandDone(request_id, _FATES[outcome.kind])
        elif isinstance(answer, CommandAnswer):
            done = CommandDone(request_id, Fate.APPLIED, answer.error, answer.data)
        else:
            done = CommandDone(request_id, Fate.REFUSED)  # one of a client's own requests
        self._outgoing(to_server).answers.append(encode_done(done))

    def answer_received(self, from_server: ServerId, payload: memoryview) -> None:
        """Take a peer's answer to our command. Raise MalformedFrame if it is malformed."""
        done = decode_done(payload)
        outcome = _OUTCOMES.get(done.fate, UNKNOWN)
        if done.fate is Fate.APPLIED:
            code = ERRORS_BY_CODE.get(done.code, ErrorCode.UNKNOWN_SERVER_ERROR)
            answer = CommandAnswer(code, bytes(done.answer))
            outcome = Outcome(OutcomeKind.APPLIED, answer)
        self._ended(done.request_id, from_server, outcome)

    # --- the leader's side -------------------------------------------------------------------
    def _deliver(
        self, group_id: GroupId, data: bytes, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        """Have a group that leads here append a command."""
        stream = self._state.streams.get(group_id)
        if stream is not None:
            stream.commands.run(data, deadline_ns=deadline_ns, done=done)
            return
        state_group = self._state.state_groups.get(group_id)
        if state_group is None or not state_group.serving or group_id == CATALOG_GROUP:
            done(NOT_APPENDED)
            return
        try:
            command = commands.decode_command(data)
        except commands.DecodeError:
            done(TOO_LARGE)
            return
        if state_group.machine.understands(command):
            self.receive(group_id, command, deadline_ns, done)
        else:
            done(TOO_LARGE)

    def _propose(
        self, group_id: GroupId, command: Any, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        self._state.state_groups[group_id].propose(command, deadline_ns=deadline_ns, done=done)

    # --- time --------------------------------------------------------------------------------
    def retry(self, now_ns: int) -> None:
        """Send due commands again, and end those whose deadline has passed."""
        if now_ns < self._due_ns:
            return
        due: list[int] = []
        self._due_ns = NEVER
        for number, sent in self._sent.items():
            at_ns = min(sent.again_ns, sent.deadline_ns)
            if at_ns <= now_ns:
                due.append(number)
            elif at_ns < self._due_ns:
                self._due_ns = at_ns
        for number in due:
            late = self._sent.get(number)
            if late is None:
                continue  # it was answered in the meantime
            if late.deadline_ns > now_ns:
                self._try(number)
            else:
                del self._sent[number]
                late.done(UNKNOWN if late.is_open else NOT_APPENDED)

    def link_down(self, server_id: ServerId) -> None:
        """Send the server's commands again, as they may be lost; drop unsent output for it.

        The next link may be to another process.
        """
        self.out.pop(server_id, None)
        for sent in self._sent.values():
            if sent.sent_to == server_id:
                self._wait(sent)

    def close(self) -> None:
        """Answer all commands: the server stops."""
        pending, self._sent = self._sent, {}
        for sent in pending.values():
            sent.done(UNKNOWN)


_FATES = {
    OutcomeKind.NOT_APPENDED: Fate.NOT_APPENDED,
    OutcomeKind.UNKNOWN: Fate.UNKNOWN,
    OutcomeKind.TOO_LARGE: Fate.REFUSED,
}
_OUTCOMES = {
    Fate.NOT_APPENDED: NOT_APPENDED,
    Fate.UNKNOWN: UNKNOWN,
    Fate.REFUSED: TOO_LARGE,
}
