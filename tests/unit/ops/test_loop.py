"""The loop's turns, and threads that wake it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

import pytest

from tests.hangs import HANG_SECONDS
from vdl.server.loop import Doorbell, LoopClock, TurnLoop


def run(scenario: Callable[[TurnLoop], None], done: Callable[[], bool]) -> None:
    """Call `scenario`, then run turns of the loop until `done()`, and some more.

    Unexpected calls could happen in these.
    """
    loop = TurnLoop()
    more = iter(range(10))

    def look() -> None:
        if done() and next(more, None) is None:
            loop.stop()
        else:
            loop.call_soon(look)

    try:
        scenario(loop)
        loop.call_soon(look)
        loop.call_later(HANG_SECONDS, loop.stop)
        loop.run_forever()
    finally:
        loop.close()


def ready_file() -> int:
    """Return a file descriptor that is readable until it is read."""
    return os.eventfd(1, os.EFD_NONBLOCK)


def test_turn_ends_after_all_that_was_ready_and_before_the_next_look() -> None:
    """Work requested by two sockets' callbacks runs once both were called, in the same round."""
    seen: list[str] = []
    files = [ready_file(), ready_file()]

    def scenario(loop: TurnLoop) -> None:
        clock = LoopClock(loop)

        def readable(file: int) -> None:
            os.eventfd_read(file)
            seen.append("in")
            clock.call_soon(lambda: seen.append("end"))
            loop.call_soon(seen.append, "next")

        for file in files:
            loop.add_reader(file, readable, file)

    run(scenario, lambda: len(seen) >= 6)
    for file in files:
        os.close(file)
    assert seen == ["in", "in", "end", "end", "next", "next"]


def test_turn_end_may_ask_for_more_but_not_for_ever() -> None:
    """Work that creates work stays in its turn for a few rounds; then sockets are polled."""
    seen: list[str] = []
    file = ready_file()
    other = os.eventfd(0, os.EFD_NONBLOCK)

    def scenario(loop: TurnLoop) -> None:
        clock = LoopClock(loop)

        def again() -> None:
            seen.append("work")
            if "other" not in seen:
                clock.call_soon(again)

        def readable() -> None:
            os.eventfd_read(file)
            os.eventfd_write(other, 1)
            clock.call_soon(again)

        def other_readable() -> None:
            os.eventfd_read(other)
            seen.append("other")

        loop.add_reader(file, readable)
        loop.add_reader(other, other_readable)

    run(scenario, lambda: "other" in seen)
    os.close(file)
    os.close(other)
    assert "other" in seen
    assert 1 < seen.index("other") < 20


def test_call_soon_between_turns_runs_soon() -> None:
    """A timer's callback is outside of any turn."""
    seen: list[str] = []

    def scenario(loop: TurnLoop) -> None:
        clock = LoopClock(loop)
        clock.call_later(1_000_000, lambda: clock.call_soon(lambda: seen.append("done")))

    run(scenario, lambda: bool(seen))
    assert seen == ["done"]


def test_turn_goes_on_after_a_callback_failed() -> None:
    """The failure reaches the loop's handler; other requested work is still done."""
    seen: list[str] = []
    failures: list[object] = []
    file = ready_file()

    def scenario(loop: TurnLoop) -> None:
        clock = LoopClock(loop)
        loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))

        def fail() -> None:
            clock.call_soon(lambda: seen.append("later"))
            raise RuntimeError("on purpose")

        def readable() -> None:
            os.eventfd_read(file)
            clock.call_soon(fail)

        loop.add_reader(file, readable)

    run(scenario, lambda: bool(seen and failures))
    os.close(file)
    assert [str(failure) for failure in failures] == ["on purpose"]
    assert seen == ["later"]


def test_doorbell_runs_calls_of_threads_in_order() -> None:
    """Nothing is lost or reordered, however threads and loop interleave."""
    seen: dict[int, list[int]] = {0: [], 1: []}
    count = 2_000

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        bell = Doorbell(loop)
        done = loop.create_future()

        def take(told: tuple[int, int]) -> None:
            seen[told[0]].append(told[1])
            if sum(map(len, seen.values())) == 2 * count:
                done.set_result(None)

        def ring(thread: int) -> None:
            for number in range(count):
                bell.ring(take, (thread, number))

        threads = [threading.Thread(target=ring, args=(number,)) for number in seen]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done, HANG_SECONDS)
        for thread in threads:
            thread.join()

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(scenario())
    assert seen == {0: list(range(count)), 1: list(range(count))}


def test_files_are_called_for_until_nobody_wants_to_be() -> None:
    """Readers and writers are added and removed independently.

    A file removed in a turn is not called in it, though it was ready; removing an unknown file
    returns False.
    """
    seen: list[str] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)

    def scenario(loop: TurnLoop) -> None:
        assert not loop.remove_reader(ours)
        assert not loop.remove_writer(ours)

        def readable(word: str) -> None:
            seen.append(word + ours.recv(10).decode())
            loop.remove_writer(ours)
            loop.add_reader(ours, again)

        def again() -> None:
            seen.append(f"again {ours.recv(10).decode()}")
            assert loop.remove_reader(ours)
            assert not loop.remove_reader(ours)
            theirs.send(b"3")

        theirs.send(b"1")
        loop.add_reader(ours, readable, "first ")
        loop.add_writer(ours, seen.append, "never")
        loop.add_writer(theirs, loop.remove_writer, theirs)
        loop.call_later(0.05, theirs.send, b"2")

    run(scenario, lambda: len(seen) >= 2)
    ours.close()
    theirs.close()
    assert seen == ["first 1", "again 2"]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110 - any condition at all, on a loop of its own
            await asyncio.sleep(0)


def test_files_of_transports_share_the_turn() -> None:
    """The turn's end runs after asyncio's own callbacks, which run after those of watched files."""
    seen: list[str] = []
    file = ready_file()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnLoop)
        clock = LoopClock(loop)
        ours, theirs = socket.socketpair()

        class Protocol(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                seen.append("transport")
                clock.call_soon(lambda: seen.append("end"))

        transport, _ = await loop.create_connection(Protocol, sock=ours)

        def readable() -> None:
            os.eventfd_read(file)
            seen.append("watched")
            clock.call_soon(lambda: seen.append("end"))

        theirs.send(b"x")
        loop.add_reader(file, readable)
        await until(lambda: len(seen) == 4)
        loop.remove_reader(file)
        transport.close()
        theirs.close()

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(scenario())
    os.close(file)
    assert seen == ["watched", "transport", "end", "end"]


def test_files_that_asyncio_watches_itself_are_its_own() -> None:
    """`sock_connect` registers a file through asyncio, and removes it by the loop's methods.

    Similar calls do so, too.
    """

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failures: list[object] = []
        loop.set_exception_handler(lambda loop, context: failures.append(context))
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        ours = socket.socket()
        ours.setblocking(False)
        accepted = asyncio.ensure_future(loop.sock_accept(listening))
        await asyncio.sleep(0)
        await loop.sock_connect(ours, listening.getsockname())
        theirs, _ = await accepted
        heard = asyncio.ensure_future(loop.sock_recv(theirs, 10))
        await asyncio.sleep(0)
        await loop.sock_sendall(ours, b"x")
        assert await heard == b"x"
        # It is unregistered now, and can be watched.
        told = loop.create_future()
        loop.add_reader(theirs, told.set_result, None)
        await loop.sock_sendall(ours, b"y")
        await told
        assert loop.remove_reader(theirs)
        for end in (ours, theirs, listening):
            end.close()
        assert failures == []

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(asyncio.wait_for(scenario(), HANG_SECONDS))


def test_transport_that_is_registered_anew_in_a_turn_goes_on_reading() -> None:
    """A transport registered anew keeps reading.

    asyncio would take an event of the previous registration as a reason to remove the new one.
    """
    file = os.eventfd(0, os.EFD_NONBLOCK)
    got: list[bytes] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()

        class Protocol(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                got.append(data)

        transport, _ = await loop.create_connection(Protocol, sock=ours)

        def readable() -> None:
            os.eventfd_read(file)
            transport.pause_reading()
            transport.resume_reading()

        loop.add_reader(file, readable)
        await asyncio.sleep(0)
        theirs.send(b"x")
        os.eventfd_write(file, 1)
        await until(lambda: got == [b"x"])
        theirs.send(b"y")
        await until(lambda: len(got) == 2)
        loop.remove_reader(file)
        transport.close()
        theirs.close()

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(scenario())
    os.close(file)
    assert got == [b"x", b"y"]


def test_doorbell_goes_on_behind_a_call_that_failed() -> None:
    """The failure reaches the loop's handler, and later calls run."""
    seen: list[int] = []
    failures: list[object] = []

    def scenario(loop: TurnLoop) -> None:
        loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        bell = Doorbell(loop)

        def take(number: object) -> None:
            assert isinstance(number, int), number
            if number == 0:
                raise RuntimeError("on purpose")
            seen.append(number)

        for number in range(3):
            bell.ring(take, number)

    run(scenario, lambda: len(seen) >= 2)
    assert seen == [1, 2]
    assert [str(failure) for failure in failures] == ["on purpose"]


def test_closed_loop_refuses_files_as_asyncio_does() -> None:
    loop = TurnLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.add_reader(0, print)
    assert not loop.remove_reader(0)
