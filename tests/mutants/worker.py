"""Runs worlds with the code of one copy: a process of its own, so that nothing is shared.

    echo 1 2 3 | PYTHONPATH=COPY python -P worker.py COPY [--quiet] [--first]

Reads seeds and prints one line of JSON for each, until whoever reads those has seen enough and ends
it. With `--quiet` the worlds are without faults and have fixed options. With `--first` a world ends
at its first violation: what follows one takes long and tells nothing new. `cpu_s` is what the world
took up to there, in processor time. A world that does not end within its processor time is reported
as such; it is no finding. A world is `happy` when clients wrote, everything could be read at the
end, and the history has no anomaly.

Must not know: what is planted in the copy.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import time
from pathlib import Path

WORLD_CPU_S = 60.0
"""A world takes about a second."""


class _TooLong(BaseException):
    """Not an Exception: a world takes those for its processes' deaths."""


def _expire(number: int, frame: object) -> None:
    raise _TooLong


class _Violated(BaseException):
    """The first violation of a world."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("copy", type=Path)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--first", action="store_true")
    arguments = parser.parse_args()

    from vdl.check import report
    from vdl.sim.options import Options
    from vdl.sim.run import GC_THRESHOLDS, run_seed

    check_origin(arguments.copy)
    signal.signal(signal.SIGVTALRM, _expire)
    violated_at = note_first_violation(ends_world=arguments.first)
    options = Options(seconds=6) if arguments.quiet else None
    # As where many seeds are run: what is loaded stays, and worlds are all young objects.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    for seed in map(int, sys.stdin.read().split()):
        line = {"seed": seed, "violations": [], "ended": True, "happy": False}
        violated_at.clear()
        began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, WORLD_CPU_S)
        try:
            outcome = run_seed(seed, options=options)
            history = outcome.history
            line["violations"] = [str(violation) for violation in outcome.violations]
            line["happy"] = (
                outcome.acknowledgements > 0
                and any(op.final for op in history)
                and not report.find(history)
            )
        except _TooLong:
            line["ended"] = False
        except _Violated as violated:
            line["violations"] = [str(violated)]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        line["cpu_s"] = (violated_at or [time.process_time()])[0] - began
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        outcome = history = None
        gc.collect()
    return 0


def note_first_violation(*, ends_world: bool) -> list[float]:
    """Where the processor time of a world's first violation will stand, whatever the simulator
    notes as one; `ends_world`: it is the last thing that happens there."""
    from vdl.sim.invariants import Violation, Watch

    noted: list[float] = []
    inner = Watch.violate

    def violate(watch: Watch, name: str, detail: str) -> None:
        noted.append(time.process_time())
        if ends_world:
            raise _Violated(Violation(name, detail))
        inner(watch, name, detail)

    Watch.violate = violate
    return noted


def check_origin(copy: Path) -> None:
    """All that was imported of the production code is the copy's."""
    copy = copy.resolve()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in {"ids", "raft", "rpc", "segments", "vdl"}:
            continue
        origin = Path(module.__file__ or "").resolve()
        if not origin.is_relative_to(copy):
            raise SystemExit(f"{name} comes from {origin}, not from {copy}")


if __name__ == "__main__":
    sys.exit(main())
