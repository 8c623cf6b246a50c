"""`python -m vdl.testing`: the process that runs a test cluster, see `command_loop.py`."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    # Nothing of what is loaded before the first fork is garbage, see `_start`.
    gc.disable()
    from vdl.testing.command_loop import main

    sys.exit(main())
