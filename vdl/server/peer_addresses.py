"""Comparison of the servers' configured peer addresses when servers are linked.

The files of the servers that formed the cluster should have the same addresses; that of a server
that was added later may lack some. A server whose file has another address for a peer stays linked
as long as that peer dials it, and loses the link once it does not.

Does not depend on links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ids import ServerId
from rpc.hello import ADDRESSES_BYTES_MAX, Hello

DIFFERENCES_TOLD: Final = 3
ADDRESS_CHARS_MAX: Final = 100
"""Longest address that is accepted from another server's file."""
_NONE: Final = "nowhere"


class PeerAddresses:
    """The addresses of one server's file, and how those of the others differ."""

    def __init__(
        self, server_id: ServerId, addresses: Mapping[ServerId, str], digest: bytes, own: str = ""
    ) -> None:
        """`digest`: `configuration_digest` of the addresses. `own`: the address of this server,
        for a file that has it nowhere else."""
        self._server_id = server_id
        self._digest = digest
        self._addresses = dict(addresses)
        self._own = own
        self.differences: dict[ServerId, str] = {}
        """By linked server whose file differs: the difference, by its last hello."""

    def encoded(self) -> bytes:
        """Return the field of HELLO: one line of id and address for each server; empty if it is too
        long."""
        own = {self._server_id: self._own} if self._own else {}
        sent = {**own, **self._addresses}
        lines = [f"{one} {address}" for one, address in sorted(sent.items())]
        text = "\n".join(lines).encode()
        return text if len(text) <= ADDRESSES_BYTES_MAX else b""

    def linked(self, hello: Hello, *, is_added: bool = False) -> bool:
        """Compare a peer's addresses. Return True if there is a new difference.

        `is_added`: one of the two servers was added later, or waits to be.
        """
        peer, theirs = hello.server_id, _decoded(hello.addresses)
        own = self._addresses
        if peer not in own:
            theirs.pop(peer, None)  # its own address, which is for `announced_by`
        is_equal = hello.config_digest == self._digest
        if is_equal or (is_added and all(own.get(o, a) == a for o, a in theirs.items())):
            self.differences.pop(peer, None)
            return False
        text = self._difference(peer, theirs)
        is_new = self.differences.get(peer) != text
        self.differences[peer] = text
        return is_new

    @staticmethod
    def announced_by(hello: Hello) -> str:
        """Return the address that a server has for itself; empty if it has sent none."""
        return _decoded(hello.addresses).get(hello.server_id, "")

    def _difference(self, peer: ServerId, theirs: Mapping[ServerId, str]) -> str:
        """Return the difference, in the same words on both servers."""
        files = sorted([(self._server_id, self._addresses), (peer, theirs)], key=lambda f: f[0])
        (lower, first), (higher, second) = files
        told = [
            f"server {one} has address {first.get(one, _NONE)} in the file of server {lower}, "
            f"{second.get(one, _NONE)} in that of server {higher}"
            for one in sorted(first.keys() | second.keys())
            if first.get(one) != second.get(one)
        ]
        if not theirs or not told:
            return f"the files of servers {lower} and {higher} have different addresses of servers"
        left = len(told) - DIFFERENCES_TOLD
        return "; ".join(told[:DIFFERENCES_TOLD]) + (f"; and {left} more" if left > 0 else "")


def _decoded(encoded: bytes) -> dict[ServerId, str]:
    """Return server → address; other lines are left out."""
    found = {}
    for line in encoded.decode("utf-8", "replace").split("\n"):
        number, _, address = line.partition(" ")
        if number.isascii() and number.isdecimal() and len(number) <= 10:
            found[ServerId(int(number))] = address[:ADDRESS_CHARS_MAX]
    return found
