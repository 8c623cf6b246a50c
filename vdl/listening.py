"""Listening sockets of a server, for clients and for monitoring.

Does not depend on event loops or protocols.
"""

from __future__ import annotations

import socket


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Return a bound and listening socket with the given backlog.

    `::` accepts IPv4 as well, unlike with asyncio and `socket.create_server`. A name resolves to an
    IPv4 address if it has one. Raise OSError, which names host and port, if that fails.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # The address is kept complete: a link-local one is useless without its zone.
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
