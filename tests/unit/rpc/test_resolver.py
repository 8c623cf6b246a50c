"""Name resolution in the background of dials: late, changed, missing, too many."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from rpc.link_options import LinkOptions
from rpc.resolver import HOSTS_MAX, Answer, Resolver, resolve
from rpc.streams import Address
from rpc.transport import DialTroubles, SocketTransport
from tests.unit.rpc.test_transport import LOOPBACK, until
from tests.unit.rpc.world import MS, Recorder, VirtualClock, hello_of

# An attempt is over long before a lookup that a test delays.
OPTIONS = LinkOptions(stable_ms=0, attempt_ms_max=20, backoff_max_ms=20)

Trouble = tuple[int, Address, str]


class Names:
    """`socket.getaddrinfo` for names that end in `.test`.

    It has their addresses, and makes chosen lookups wait.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, str | tuple[str, ...]] = {}
        self.lookups: dict[str, int] = {}
        self.free = 1_000
        """Number of lookups of each name that return at once; the others wait for `let_one_go`."""
        self.under_way_most = 0
        self._under_way: dict[str, int] = {}
        self._held = threading.Condition()
        self._is_over = False
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, port: int, **kwargs: int) -> object:
        if not host.endswith(".test"):
            return self._real(host, port, **kwargs)
        if kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        with self._held:
            number = self.lookups[host] = self.lookups.get(host, 0) + 1
            self._under_way[host] = self._under_way.get(host, 0) + 1
            self.under_way_most = max(self.under_way_most, *self._under_way.values())
            self._held.wait_for(lambda: number <= self.free or self._is_over)
            self._under_way[host] -= 1
            address = self.addresses.get(host)
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = (address,) if isinstance(address, str) else address
        return [info for one in found for info in self._real(one, port, **kwargs)]

    def let_go(self, free: int) -> None:
        """Let the first `free` lookups of each name return; the others hang."""
        with self._held:
            self.free = free
            self._held.notify_all()

    def end(self) -> None:
        with self._held:
            self._is_over = True
            self._held.notify_all()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.end()


def transport(
    server_id: int, listen: Address = LOOPBACK, troubles: list[Trouble] | None = None
) -> SocketTransport:
    told: list[Trouble] = [] if troubles is None else troubles
    return SocketTransport(
        hello_of(server_id),
        listen,
        Recorder(),
        loop=asyncio.get_running_loop(),
        rng=random.Random(server_id),
        options=OPTIONS,
        on_trouble=lambda peer, address, cause: told.append((peer, address, cause)),
    )


def is_up(one: SocketTransport) -> bool:
    return all(status.is_up for status in one.links())


def failures(one: SocketTransport) -> int:
    (status,) = one.links()
    return status.dial_failures


def test_transport_name_that_takes_longer_than_an_attempt_is_linked_to(names: Names) -> None:
    """One lookup per name is under way however often it is dialled.

    A dial that began after it uses its result. Only the first lookup ever returns.
    """

    async def scenario() -> None:
        names.addresses = {"one.test": "127.0.0.1", "two.test": "127.0.0.1"}
        names.let_go(0)
        troubles: list[Trouble] = []
        one, two = transport(1, troubles=troubles), transport(2)
        with contextlib.closing(one), contextlib.closing(two):
            one.set_peer(2, ("two.test", two.port))
            two.set_peer(1, ("one.test", one.port))
            await until(lambda: failures(one) > 3 and failures(two) > 3)
            assert names.lookups == {"one.test": 1, "two.test": 1}
            cause = "the lookup of the name is still in progress"
            assert troubles == [(2, ("two.test", two.port), cause)]
            names.let_go(1)
            await until(lambda: is_up(one) and is_up(two))
            assert names.under_way_most == 1

    asyncio.run(scenario())


def test_transport_lost_link_to_a_known_name_does_not_wait_for_its_lookup(names: Names) -> None:
    """The name server failed meanwhile: its last result is dialled."""

    async def scenario() -> None:
        names.addresses = {"two.test": "127.0.0.1"}
        names.let_go(1)
        one, two = transport(1), transport(2)
        with contextlib.closing(one):
            one.set_peer(2, ("two.test", two.port))
            await until(lambda: is_up(one))
            address = ("127.0.0.1", two.port)
            two.close()
            await until(lambda: failures(one) > 3)
            two = transport(2, address)
            with contextlib.closing(two):
                await until(lambda: is_up(one))
            assert names.lookups == {"two.test": 2}

    asyncio.run(scenario())


def test_transport_name_that_moved_is_found_again(names: Names) -> None:
    """The known address refuses; the name is resolved again in the background."""

    async def scenario() -> None:
        names.addresses = {"two.test": "127.0.0.1"}
        one, two = transport(1), transport(2)
        with contextlib.closing(one):
            port = two.port
            one.set_peer(2, ("two.test", port))
            await until(lambda: is_up(one))
            two.close()
            await until(lambda: not is_up(one))
            names.addresses["two.test"] = "127.0.0.2"
            two = transport(2, ("127.0.0.2", port))
            with contextlib.closing(two):
                await until(lambda: is_up(one))

    asyncio.run(scenario())


def test_transport_address_that_never_answers_does_not_keep_a_name_from_its_others(
    names: Names,
) -> None:
    """A silent address, such as an unreachable IPv6 one, does not block the others of its name.

    An attempt ends before the first address has been silent for long enough.
    """

    async def scenario() -> None:
        names.addresses = {"two.test": ("127.0.0.3", "127.0.0.2")}
        with contextlib.ExitStack() as opened:
            two = opened.enter_context(contextlib.closing(transport(2, ("127.0.0.2", 0))))
            # A full backlog does not answer.
            silent = opened.enter_context(socket.socket())
            silent.bind(("127.0.0.3", two.port))
            silent.listen(0)
            for _ in range(2):
                waiting = opened.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(silent.getsockname())
            one = opened.enter_context(contextlib.closing(transport(1)))
            one.set_peer(2, ("two.test", two.port))
            await until(lambda: is_up(one))

    asyncio.run(scenario())


def test_resolver_tries_silent_addresses_last_and_longest_silent_first(names: Names) -> None:
    """All of them in turn when all are silent; addresses that a name no longer has are removed."""

    async def scenario() -> None:
        resolver = Resolver(asyncio.get_running_loop().call_soon_threadsafe)

        async def ask() -> list[str]:
            answers: list[Answer] = []
            resolver.ask(("many.test", 7), answers.append)
            await until(lambda: bool(answers))
            assert isinstance(answers[0], list)
            # Wait for the background lookup, so that the next attempt uses its result.
            await until(lambda: not resolver._hosts["many.test"].is_under_way)
            return [target[0] for _, target in answers[0]]

        def silent(address: str) -> None:
            resolver.stayed_silent("many.test", (socket.AF_INET, (address, 7)))

        names.addresses = {"many.test": ("127.0.0.1", "127.0.0.2", "127.0.0.3")}
        assert await ask() == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        silent("127.0.0.1")
        assert await ask() == ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
        silent("127.0.0.2")
        silent("127.0.0.3")
        assert await ask() == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        silent("127.0.0.1")
        assert await ask() == ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
        names.addresses = {"many.test": ("127.0.0.2", "127.0.0.4")}
        await ask()
        assert await ask() == ["127.0.0.4", "127.0.0.2"]
        silent("127.0.0.9")
        assert resolver._hosts["many.test"].silent == ["127.0.0.2"]

    asyncio.run(scenario())


def test_transport_name_that_means_nothing_is_told_once(names: Names) -> None:
    """A name that does not exist is logged once, however often it is dialled."""

    async def scenario() -> None:
        troubles: list[Trouble] = []
        with contextlib.closing(transport(1, troubles=troubles)) as one:
            one.set_peer(2, ("two.test", 7))
            await until(lambda: failures(one) > 5)
        assert names.lookups["two.test"] > 3
        assert troubles == [(2, ("two.test", 7), "Name or service not known")]

    asyncio.run(scenario())


def test_names_that_cannot_be_looked_up_are_answered() -> None:
    """The system refuses some names before any lookup, in its own way."""
    for name in ("a" * 64 + ".test", "two..test"):
        answer = resolve((name, 1))
        assert isinstance(answer, str)
        assert answer.startswith("not a valid host name")


def test_resolver_bounds_hosts_under_way_and_forgets_idle_ones(names: Names) -> None:
    """One past the limit gets an error; finished hosts make room, the oldest first."""

    async def scenario() -> None:
        resolver = Resolver(asyncio.get_running_loop().call_soon_threadsafe)
        answers: dict[str, Answer] = {}

        def ask(name: str) -> None:
            resolver.ask((name, 7), partial(answers.__setitem__, name))

        names.let_go(0)
        every = [f"{number}.test" for number in range(HOSTS_MAX)]
        names.addresses = dict.fromkeys(every, "127.0.0.1")
        for name in every:
            ask(name)
        ask("more.test")
        await until(lambda: bool(answers))
        assert answers == {"more.test": "too many lookups of names are in progress"}
        assert sum(names.lookups.values()) <= HOSTS_MAX
        names.let_go(1)
        await until(lambda: len(answers) == HOSTS_MAX + 1)
        assert answers["5.test"] == [(socket.AF_INET, ("127.0.0.1", 7))]
        ask("more.test")
        await until(lambda: "more.test" in names.lookups)
        assert "0.test" not in resolver._hosts
        assert "1.test" in resolver._hosts

    asyncio.run(scenario())


def test_resolver_forgets_who_gave_up() -> None:
    """A name that hangs for hours is dialled every second: no requests may accumulate."""
    posted: list[Callable[[], None]] = []
    resolver = Resolver(posted.append)
    resolver._begin = lambda _name: None  # type: ignore[method-assign]
    answers: list[Answer] = []

    def given_up(answer: Answer) -> None:
        raise AssertionError(answer)

    resolver.ask(("two.test", 7), given_up)
    resolver.ask(("two.test", 8), answers.append)
    resolver.withdraw(("two.test", 7), given_up)
    assert len(resolver._hosts["two.test"].waiting) == 1
    resolver._looked_up("two.test", [(socket.AF_INET, ("127.0.0.1", 0))])
    assert answers == [[(socket.AF_INET, ("127.0.0.1", 8))]]
    assert posted == []


def test_dial_troubles_are_told_when_they_are_news() -> None:
    """A failure is logged again for another cause, and for the same one after a pause.

    Another cause is not logged at once.
    """
    clock = VirtualClock()
    told: list[tuple[int, str]] = []  # (second, cause)
    troubles = DialTroubles(
        Resolver(lambda fn: fn()),
        clock,
        lambda _peer, _address, cause: told.append((clock.now_ns() // (1_000 * MS), cause)),
    )
    refused, unreachable = "Connection refused", "No route to host"
    for second in range(60):
        if second < 40 or second > 52:
            troubles.dial_failed(2, ("two", 7), unreachable if second in range(5, 30) else refused)
        clock.run(1_000)
    assert told == [(0, refused), (10, unreachable), (30, refused), (53, refused)]
