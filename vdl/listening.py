"""The sockets that a server listens on, for clients and for who watches it.

Must not know: event loops, what is said over them.
"""

from __future__ import annotations

import socket


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Bound and listening; `backlog` connections may wait. `::` takes IPv4 as well, which asyncio
    and `socket.create_server` keep out. A name stands for an IPv4 address if it has one.

    Raises OSError, which names host and port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # The whole of it: the address of a link is nothing without its zone.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(backlog)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {host} port {port}") from error
    return listening
