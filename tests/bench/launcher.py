"""`vdl serve` with a variant's changes, for measurements only:

    python -m tests.bench.launcher VARIANT serve --config FILE --pid-file FILE

The words after VARIANT are those of a server's own command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.bench.variants import VARIANTS
from vdl.commands.serve import serve


def main(arguments: Sequence[str]) -> int:
    variant, command, *rest = arguments
    assert command == "serve", command
    for change in VARIANTS[variant]:
        setattr(change.owner, change.name, change.value)
    return serve(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
