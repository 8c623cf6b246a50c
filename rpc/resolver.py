"""Names to addresses: only the first lookup of a host waits for the system's resolver.

The system may take seconds for a name (five for a dead name server). That is longer than an attempt
to link may last. So a lookup belongs to its host, not to its caller:

* There is one at a time for a host. It goes on when its caller has timed out, and its result is
  kept.
* A known host is answered at once and looked up again in the background, so that the next caller
  sees an address that changed. A failed lookup leaves the known addresses as they are.
* An address that did not respond moves behind the host's others, because its caller had no time
  left to try those.

Each lookup is a daemon thread. asyncio's own pool is small, so lookups that hang would block the
others, and a process that ends would wait for all of them, even for those that have not begun.

Bounds: one thread for each host that is being looked up, `HOSTS_MAX` hosts. Everything but the
lookup itself happens on the thread that `post` leads to.

Must not know: sockets that are connected, asyncio.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial

from rpc.streams import Address

HOSTS_MAX = 64
"""Hosts remembered. More can be asked for, only not that many at one time."""

Candidate = tuple[int, tuple[str, int] | tuple[str, int, int, int]]
"""(address family, socket address)"""

Answer = list[Candidate] | str
"""All socket addresses, in the system's order and at least one, or why there are none."""


class _Host:
    """What is known about one name."""

    __slots__ = ("failure", "found", "is_under_way", "silent", "waiting")

    def __init__(self) -> None:
        self.found: list[Candidate] = []  # by the last lookup that found any; their port is 0
        # Of those found, where nobody said a word; whoever was silent last comes last.
        self.silent: list[str] = []
        self.failure = ""  # of the last lookup, if it found none
        self.is_under_way = False
        # Invariant: none while something is found. Who waits, and for which port.
        self.waiting: dict[Callable[[Answer], None], int] = {}

    def at_port(self, port: int) -> list[Candidate]:
        """What was found, with its port, in the order in which it is to be tried."""
        ranks = {silent: n for n, silent in enumerate(self.silent)}
        return [
            (family, (target[0], port, *target[2:]) if len(target) == 4 else (target[0], port))
            for family, target in sorted(self.found, key=lambda one: ranks.get(one[1][0], -1))
        ]


class Resolver:
    """See the module. One for all dials of a server."""

    def __init__(self, post: Callable[[Callable[[], None]], object]) -> None:
        """`post`: call this soon, on the owner's thread; called from any. It may raise RuntimeError
        once the owner is gone."""
        self._post = post
        self._hosts: dict[str, _Host] = {}

    def ask(self, address: Address, on_answer: Callable[[Answer], None]) -> None:
        """One answer follows, never from within this call, unless withdrawn."""
        name, port = address
        host = self._host(name)
        if host is None:
            self._post(partial(on_answer, "too many names are being looked up"))
            return
        if host.found:
            self._post(partial(on_answer, host.at_port(port)))
        else:
            host.waiting[on_answer] = port
        if not host.is_under_way:
            host.is_under_way = True
            self._begin(name)

    def withdraw(self, address: Address, on_answer: Callable[[Answer], None]) -> None:
        """Wait no longer. An answer that was on its way still comes."""
        host = self._hosts.get(address[0])
        if host is not None:
            host.waiting.pop(on_answer, None)

    def stayed_silent(self, name: str, candidate: Candidate) -> None:
        """An attempt to connect there ended before anybody refused it or took it."""
        host = self._hosts.get(name)
        silent = candidate[1][0]
        if host is not None and any(silent == target[0] for _, target in host.found):
            host.silent = [other for other in host.silent if other != silent] + [silent]

    def trouble(self, name: str) -> str:
        """Why this name has no address so far; "" if it has one, or nobody asked."""
        host = self._hosts.get(name)
        if host is None or host.found:
            return ""
        return host.failure or "the name is still being looked up"

    def _host(self, name: str) -> _Host | None:
        """The host, from now on the one asked for last. None: there is no room for it."""
        host = self._hosts.pop(name, None)
        if host is None:
            if len(self._hosts) >= HOSTS_MAX:
                idle = (known for known, host in self._hosts.items() if not host.is_under_way)
                oldest = next(idle, None)
                if oldest is None:
                    return None
                del self._hosts[oldest]
            host = _Host()
        self._hosts[name] = host
        return host

    def _begin(self, name: str) -> None:
        thread = threading.Thread(
            target=self._look_up, args=(name,), name=f"lookup of {name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            self._post(partial(self._looked_up, name, str(error)))

    def _look_up(self, name: str) -> None:
        """On the lookup's own thread."""
        answer = resolve((name, 0))
        with contextlib.suppress(RuntimeError):
            self._post(partial(self._looked_up, name, answer))

    def _looked_up(self, name: str, answer: Answer) -> None:
        host = self._hosts[name]  # which is not forgotten while it is looked up
        assert host.is_under_way
        host.is_under_way = False
        if isinstance(answer, str):
            host.failure = answer
        else:
            host.found, host.failure = answer, ""
            there = {target[0] for _, target in answer}
            host.silent = [silent for silent in host.silent if silent in there]
        waiting, host.waiting = host.waiting, {}
        for on_answer, port in waiting.items():
            on_answer(answer if isinstance(answer, str) else host.at_port(port))


def numeric(address: Address) -> Candidate | None:
    """The socket address of a numeric host, None for a name."""
    try:
        found = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except (OSError, ValueError):
        return None
    return _candidate(found[0])


def resolve(address: Address) -> Answer:
    """All socket addresses of a host, or why there are none. Blocks."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # what cannot be a name at all: a label of 64 letters
        return f"not a host's name: {error}"
    if not found:
        return "no address"
    return [_candidate(info) for info in found]


_AddressInfo = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]


def _candidate(info: _AddressInfo) -> Candidate:
    family, _, _, _, target = info
    host = target[0]
    assert isinstance(host, str), info  # the other shape is for families we did not ask for
    if len(target) == 4:
        return family, (host, int(target[1]), target[2], target[3])
    return family, (host, int(target[1]))
