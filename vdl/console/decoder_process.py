"""The child that decodes values with schemas: `python -m vdl.console.decoder_process URL LOGIN`.

`registered_values.py` has its messages. Everything that clients or the registry may send is bounded
by limits of the process: memory, and the time of one page, after which the kernel ends it even
within a library. It ends with its input, and after it was unused for a while.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Final

from vdl.console.shown_values import SHOWN_CHARS_MAX

MEMORY_BYTES_MAX: Final = 256 << 20
FILE_BYTES_MAX: Final = 16 << 20
"""Size of a temporary file: Protobuf's compiler reads schemas from files."""
PAGE_SECONDS_MAX: Final = 10
UNUSED_SECONDS: Final = 60
SCHEMAS_PER_PAGE: Final = 16
"""Schemas that a page may ask the registry for; the following page asks for further ones."""
_MISSING: Final = "this needs packages that are not installed: pip install 'vdl-log[cli]'"

Row = tuple[str | None, str | None]


class Decoder:
    """Decodes pages of values. Use: in one thread."""

    def __init__(self, url: str, login: str) -> None:
        """Load what decodes. Raises ImportError, OSError for the file of the login."""
        from vdl.pipeline.registered.registry import Registry
        from vdl.pipeline.registered.values import Values

        settings = {"url": url}
        if login:
            user, _, password = Path(login).read_text(encoding="utf-8").strip().partition(":")
            settings |= {"user": user, "password": password}
        self._values = Values(Registry(settings, is_patient=False))
        self._known: set[bytes] = set()

    def page(self, values: list[bytes]) -> list[Row]:
        """Return (text, problem) of each value. A registry that fails is asked once."""
        from vdl.pipeline.registered.errors import RegistryFailed, ValueUnreadable

        found: list[Row] = []
        failure = ""
        asked = 0
        for value in values:
            schema_id = value[1:5]
            is_new = schema_id not in self._known
            if is_new and (failure or asked >= SCHEMAS_PER_PAGE):
                found.append((None, failure or f"more than {SCHEMAS_PER_PAGE} new schemas"))
                continue
            try:
                found.append((self._values.text(value)[: SHOWN_CHARS_MAX + 1], None))
            except ValueUnreadable as error:
                found.append((None, str(error)))
            except RegistryFailed as error:
                failure = str(error)
                found.append((None, failure))
                continue
            asked += is_new
            self._known.add(schema_id)
        return found


def main() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    decoder: Decoder | None = None
    problem = ""
    try:
        decoder = Decoder(*sys.argv[1:3])
    except ImportError:
        problem = _MISSING
    except OSError as error:
        problem = f"http.console_registry_login: {error.strerror}"
    lines = sys.stdin.buffer
    while select.select([lines], [], [], UNUSED_SECONDS)[0] and (line := lines.readline()):
        signal.alarm(PAGE_SECONDS_MAX)  # nothing handles the signal: it ends the process
        values = [base64.b64decode(one) for one in json.loads(line)]
        rows = [(None, problem)] * len(values) if decoder is None else decoder.page(values)
        sys.stdout.buffer.write(json.dumps(rows).encode() + b"\n")
        sys.stdout.buffer.flush()
        signal.alarm(0)
    with contextlib.suppress(KeyError, OSError):
        Path(os.environ["TMPDIR"]).rmdir()  # if the console was killed, no other process does it


if __name__ == "__main__":
    main()
