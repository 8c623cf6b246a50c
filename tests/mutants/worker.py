"""Runs worlds with the code of one copy, in a process of its own, so that nothing is shared.

    echo 1 2 3 | PYTHONPATH=COPY python -P worker.py COPY [--kind KIND] [--quiet] [--first]
    PYTHONPATH=COPY python -P worker.py COPY --warm

Reads seeds and prints one line of JSON for each, until its reader has enough and ends it. With
`--kind` the worlds are of that kind (`vdl/sim/kinds.py`). With `--quiet` they are without faults
and have fixed options. With `--first` a world ends at its first violation: continuing takes long
and shows nothing new. `cpu_s` is the world's processor time up to there. A world that exceeds its
limit of processor time is reported as such; it is no finding. A world is `happy` when clients
wrote, everything could be read at the end, and the history has no anomaly.

With `--warm` it loads the code once, which takes as long as a world, and reads lines. A JSON line,
`{"sources": {module: file}, "kind": str, "quiet": bool, "first": bool}`, creates a child that
continues with the functions of those files in place of the modules' own. `{"planted": bool}`
reports if that was possible: where more than bodies of functions differs, the code has to be
loaded. The child then reads seeds, one a line, each answered as above, until an empty line ends it.

Does not depend on what is planted in the copy.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType

WORLD_CPU_S = 60.0
"""A world takes about a second."""


class _TooLong(BaseException):
    """Not an Exception: a world takes those for its processes' deaths."""


def _expire(number: int, frame: object) -> None:
    raise _TooLong


class _Violated(BaseException):
    """Raised at the first violation of a world."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("copy", type=Path)
    parser.add_argument("--kind", default="")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--warm", action="store_true")
    arguments = parser.parse_args()

    from vdl.check import report
    from vdl.sim.run import GC_THRESHOLDS

    assert report, "loaded before what is loaded is frozen"
    check_origin(arguments.copy)
    functions = Functions() if arguments.warm else None
    # As where many seeds are run: loaded code is permanent, and the objects of worlds are all
    # young.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    if functions is not None:
        return serve(functions)
    seeds = map(int, sys.stdin.read().split())
    return live(seeds, kind=arguments.kind, quiet=arguments.quiet, first=arguments.first)


def serve(functions: Functions) -> int:
    """Create children, one after the other, until the input ends."""
    for line in lines():
        child = os.fork()
        if not child:
            asked = json.loads(line)
            is_planted = functions.replace(asked.pop("sources"))
            tell({"planted": is_planted})
            seeds = map(int, lines()) if is_planted else ()
            os._exit(live(seeds, **asked))
        # The child reads the input until it ends.
        _, status = os.waitpid(child, 0)
        if status:
            return 1
    return 0


def live(seeds: Iterable[int], *, kind: str, quiet: bool, first: bool) -> int:
    """Run the worlds of seeds, and print each one's result when it ends."""
    from vdl.check import report
    from vdl.sim.options import Options
    from vdl.sim.run import run_seed

    signal.signal(signal.SIGVTALRM, _expire)
    violated_at = note_first_violation(ends_world=first)
    options = Options(seconds=6) if quiet else None
    for seed in seeds:
        line = {"seed": seed, "violations": [], "ended": True, "happy": False}
        violated_at.clear()
        began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, WORLD_CPU_S)
        try:
            outcome = run_seed(seed, kind=kind, options=options)
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
        tell(line)
        outcome = history = None
        gc.collect()
    return 0


def tell(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def lines() -> Iterator[str]:
    """Yield lines of the standard input up to an empty one or the end.

    Reads not one byte more: the rest may be for another process.
    """
    while True:
        line = bytearray()
        while (byte := os.read(0, 1)) not in {b"", b"\n"}:
            line += byte
        if not line:
            return
        yield line.decode()


Place = tuple[str, str, int]


class Functions:
    """All existing functions by the position of their source: (file, qualified name, line)."""

    def __init__(self) -> None:
        self._at: dict[Place, list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                self._at.setdefault(place(one.__code__), []).append(one)
        self._names = {(file, name) for file, name, _ in self._at}

    def replace(self, sources: Mapping[str, str]) -> bool:
        """Replace the bodies of functions with those in other files, by module.

        Existing references see the new body. Return False, without any change, where anything else
        differs.
        """
        found: list[tuple[FunctionType, CodeType]] = []
        for name, source in sources.items():
            module = sys.modules.get(name)
            file = module and module.__file__
            if not file:
                return False
            own, other = (compile(Path(path).read_bytes(), file, "exec") for path in (file, source))
            bodies = differing(own, other)
            if bodies is None:
                return False
            for old, new in bodies:
                there = self._at.get(place(old), [])
                made = f"{old.co_qualname}.<locals>."
                if not there or any(n.startswith(made) for f, n in self._names if f == file):
                    return False
                found += [(function, new) for function in there]
        for function, new in found:
            function.__code__ = new
        return True


def place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def differing(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Return a module's or class's functions whose bodies differ in another version of it.

    Each comes with its new code. None if the code around them differs.
    """
    if essence(old, deep=False) != essence(new, deep=False):
        return None
    found: list[tuple[CodeType, CodeType]] = []
    for one, other in zip(parts(old), parts(new), strict=True):
        if not one.co_flags & CO_OPTIMIZED:
            inside = differing(one, other)
            if inside is None:
                return None
            found += inside
        elif essence(one) != essence(other):
            if signature(one) != signature(other):
                return None
            found.append((one, other))
    return found


def parts(code: CodeType) -> list[CodeType]:
    """Return the functions and classes defined in it."""
    return [part for part in code.co_consts if isinstance(part, CodeType)]


def signature(code: CodeType) -> tuple[object, ...]:
    """Return the properties on which its callers, and its creation as a function, depend."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return (
        code.co_qualname, code.co_flags, code.co_argcount, code.co_posonlyargcount,
        code.co_kwonlyargcount, code.co_varnames[:count], code.co_freevars,
    )  # fmt: skip


def essence(code: CodeType, *, deep: bool = True) -> tuple[object, ...]:
    """Return the behaviour of code, independent of its position.

    Of its parts it has only the names, unless `deep`.
    """
    consts = tuple(
        (essence(part) if deep else (part.co_qualname, part.co_freevars))
        if isinstance(part, CodeType)
        else (type(part), repr(part))
        for part in code.co_consts
    )
    return (
        signature(code), code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames,
        code.co_cellvars, consts,
    )  # fmt: skip


def note_first_violation(*, ends_world: bool) -> list[float]:
    """Return a list that receives the processor time of a world's first violation.

    It does so however the simulator records the violation. `ends_world`: the violation also ends
    the world.
    """
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
    """Check that all imported production modules are the copy's."""
    copy = copy.resolve()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in {"ids", "raft", "rpc", "segments", "vdl"}:
            continue
        origin = Path(module.__file__ or "").resolve()
        if not origin.is_relative_to(copy):
            raise SystemExit(f"{name} comes from {origin}, not from {copy}")


if __name__ == "__main__":
    sys.exit(main())
