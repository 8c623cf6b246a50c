"""Time at which the kernel first reported an error of a block device.

A write that the system accepted fails later, asynchronously; only the kernel's log shows when.

Does not depend on the process that wrote.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from types import TracebackType

KERNEL_LOG = "/dev/kmsg"
RECORD_BYTES_MAX = 8192
POLL_SECONDS = 0.05


class DeviceErrors:
    """Watch on the kernel's log, active within `with`.

    `first_at` is the monotonic time at which the first error of the device was reported, 0.0 as
    long as there was none.
    """

    def __init__(self, device: str) -> None:
        self.first_at = 0.0
        self.first_message = ""
        error = r"error|beyond end"
        named = rf"\b{re.escape(device)}\b"
        self._pattern = re.compile(
            rf"({error}).*{named}|{named}.*({error})|{named}: rw=", re.IGNORECASE
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-log", daemon=True)
        self._log = -1

    @staticmethod
    def missing() -> str:
        """Return the reason why the kernel's log cannot be read here; empty if it can."""
        try:
            os.close(os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            return f"needs {KERNEL_LOG}: {error.strerror}"
        return ""

    def __enter__(self) -> DeviceErrors:
        self._log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._log, 0, os.SEEK_END)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join()
        os.close(self._log)

    def _run(self) -> None:
        while not self._ends.is_set():
            if not select.select([self._log], [], [], POLL_SECONDS)[0]:
                continue
            try:
                record = os.read(self._log, RECORD_BYTES_MAX).decode("utf-8", "replace")
            except BlockingIOError:
                continue
            except BrokenPipeError:
                continue  # messages were overwritten before they were read
            if not self.first_at and self._pattern.search(record):
                self.first_at = time.monotonic()
                self.first_message = record.partition(";")[2].splitlines()[0]
