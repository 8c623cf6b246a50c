"""S3 server on this machine.

It is a process of its own, because a client that waits for a response of the store may hold
Python's lock.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def object_server() -> Iterator[str]:
    """Run a server on a free port; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            while running.poll() is None:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.05)
            assert running.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            running.kill()


def make_bucket(address: str, name: str) -> None:
    """Create an empty bucket."""
    from pyarrow.fs import S3FileSystem

    found = S3FileSystem(
        access_key="me", secret_key="word", endpoint_override=address.removeprefix("http://"),
        scheme="http", region="us-east-1", allow_bucket_creation=True,
    )  # fmt: skip
    found.create_dir(name)
    found.delete_dir_contents(name)
