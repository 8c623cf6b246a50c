"""Number of arenas of the C library's allocator, which bounds the fragmentation by threads."""

import os
import subprocess
import sys

import pytest

from vdl.commands.serve import ARENAS_MAX

THREADS = 8
ALLOCATE = f"""
import sys, threading
from vdl.commands.serve import limit_arenas
if sys.argv[1] == "limited":
    limit_arenas()
there, done = threading.Barrier({THREADS} + 1), threading.Event()
def allocate():
    held = [bytearray(50_000) for _ in range(10)]
    there.wait()
    done.wait()
threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads:
    thread.start()
there.wait()
maps = [line.split() for line in open("/proc/self/maps")]
starts = (int(fields[0].partition("-")[0], 16) for fields in maps if len(fields) == 5)
print(sum(start % (64 << 20) == 0 for start in starts))
done.set()
"""
"""Script that prints the number of arenas beside the first: each begins at a multiple of 64 MiB."""


def arenas(how: str, **environment: str) -> int:
    variables = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"} | environment
    command = [sys.executable, "-c", ALLOCATE, how]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return 1 + int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="as the C library of Linux has it")
def test_threads_share_arenas() -> None:
    if arenas("as it is") <= ARENAS_MAX:
        pytest.skip("this C library has no arena for each thread")
    assert arenas("limited") <= ARENAS_MAX
    assert arenas("limited", MALLOC_ARENA_MAX="4") == 4
