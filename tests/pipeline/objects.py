"""A server of S3 on this machine: a process of its own, because who waits for an answer of the
store may hold Python's lock."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def object_server() -> Iterator[str]:
    """On a free port; its address."""
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
    """An empty one."""
    from pyarrow.fs import S3FileSystem

    found = S3FileSystem(
        access_key="me", secret_key="word", endpoint_override=address.removeprefix("http://"),
        scheme="http", region="us-east-1", allow_bucket_creation=True,
    )  # fmt: skip
    found.create_dir(name)
    found.delete_dir_contents(name)
