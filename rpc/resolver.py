"""Name resolution: only the first lookup of a host waits for the system's resolver.

The system may take seconds for a name (five for a dead name server). That is longer than an attempt
to link may last. So a lookup belongs to its host, not to its caller:

* There is one at a time for a host. It continues when its caller has timed out, and its result is
  kept.
* A known host is answered at once and looked up again in the background, so that the next caller
  sees an address that changed. A failed lookup leaves the known addresses as they are.
* An address that did not respond moves behind the host's others, because its caller had no time
  left to try those.

Each lookup is a daemon thread. asyncio's own pool is small, so lookups that hang would block the
others, and a terminating process would wait for all of them, even for those that have not begun.

Bounds: one thread for each host that is being looked up, `HOSTS_MAX` hosts. Everything except the
lookup itself happens on the thread to which `post` leads.

Does not depend on connected sockets or asyncio.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial

from rpc.streams import Address

HOSTS_MAX = 64
"""Number of hosts remembered, which also limits concurrent lookups."""

Candidate = tuple[int, tuple[str, int] | tuple[str, int, int, int]]
"""(address family, socket address)"""

Answer = list[Candidate] | str
"""All socket addresses, at least one and in the system's order, or why there are none."""


class _Host:
    """State of one name."""

    __slots__ = ("failure", "found", "is_under_way", "silent", "waiting")

    def __init__(self) -> None:
        self.found: list[Candidate] = []  # result of the last successful lookup; ports are 0
        # Addresses in `found` that did not respond; the one that was silent last comes last.
        self.silent: list[str] = []
        self.failure = ""  # cause, if the last lookup failed
        self.is_under_way = False
        # Invariant: empty while something is found. Waiting callbacks with their ports.
        self.waiting: dict[Callable[[Answer], None], int] = {}

    def at_port(self, port: int) -> list[Candidate]:
        """Return the found addresses with this port, in the order in which to try them."""
        ranks = {silent: n for n, silent in enumerate(self.silent)}
        return [
            (family, (target[0], port, *target[2:]) if len(target) == 4 else (target[0], port))
            for family, target in sorted(self.found, key=lambda one: ranks.get(one[1][0], -1))
        ]


class Resolver:
    """Resolver for all dials of a server; see the module."""

    def __init__(self, post: Callable[[Callable[[], None]], object]) -> None:
        """`post` schedules a call on the owner's thread, and is called from any thread.

        It may raise RuntimeError once the owner is gone.
        """
        self._post = post
        self._hosts: dict[str, _Host] = {}

    def ask(self, address: Address, on_answer: Callable[[Answer], None]) -> None:
        """Look up a name. One answer follows, never within this call, unless withdrawn."""
        name, port = address
        host = self._host(name)
        if host is None:
            self._post(partial(on_answer, "too many lookups of names are in progress"))
            return
        if host.found:
            self._post(partial(on_answer, host.at_port(port)))
        else:
            host.waiting[on_answer] = port
        if not host.is_under_way:
            host.is_under_way = True
            self._begin(name)

    def withdraw(self, address: Address, on_answer: Callable[[Answer], None]) -> None:
        """Withdraw a request. An answer that is already posted still comes."""
        host = self._hosts.get(address[0])
        if host is not None:
            host.waiting.pop(on_answer, None)

    def stayed_silent(self, name: str, candidate: Candidate) -> None:
        """Record that an attempt to connect there ended without any response."""
        host = self._hosts.get(name)
        silent = candidate[1][0]
        if host is not None and any(silent == target[0] for _, target in host.found):
            host.silent = [other for other in host.silent if other != silent] + [silent]

    def trouble(self, name: str) -> str:
        """Return why this name has no address so far; "" if it has one or was not requested."""
        host = self._hosts.get(name)
        if host is None or host.found:
            return ""
        return host.failure or "the lookup of the name is still in progress"

    def _host(self, name: str) -> _Host | None:
        """Return the host and mark it as most recently used. None if there is no room for it."""
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
        """Resolve a name. Runs in the lookup's own thread."""
        answer = resolve((name, 0))
        with contextlib.suppress(RuntimeError):
            self._post(partial(self._looked_up, name, answer))

    def _looked_up(self, name: str, answer: Answer) -> None:
        host = self._hosts[name]  # not forgotten while it is looked up
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
    """Return the socket address of a numeric host, None for a name."""
    try:
        found = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except (OSError, ValueError):
        return None
    return _candidate(found[0])


def resolve(address: Address) -> Answer:
    """Return all socket addresses of a host, or why there are none. Blocks."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # it cannot be a name at all: a label of 64 letters
        return f"not a valid host name: {error}"
    if not found:
        return "the name has no address"
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
    assert isinstance(host, str), info  # the other shape is for families we did not request
    if len(target) == 4:
        return family, (host, int(target[1]), target[2], target[3])
    return family, (host, int(target[1]))
