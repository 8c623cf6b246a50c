"""`python -m vdl.kafka.codegen [--check]`: write the wire modules, or see if they are current."""

import sys
from pathlib import Path

from vdl.kafka.codegen.module import module_source, registry_source
from vdl.kafka.codegen.schema import load_all, snake_case

WIRE = Path(__file__).parent.parent / "wire"


def generate() -> dict[str, str]:
    """Return file name → text of everything generated. The same facts give the same text."""
    apis = load_all()
    files = {f"{snake_case(api.name)}.py": module_source(api) for api in apis}
    files["registry.py"] = registry_source(apis)
    return files


def stale(folder: Path = WIRE) -> list[str]:
    """Return the names of generated files that are missing or differ from the generated text."""
    return [
        name
        for name, text in generate().items()
        if not (folder / name).exists() or (folder / name).read_text() != text
    ]


def main(arguments: list[str]) -> int:
    """Run the command line. Return exit status 1 with `--check` if a module is not current."""
    if arguments == ["--check"]:
        names = stale()
        for name in names:
            sys.stderr.write(f"{WIRE / name} is not current: run python -m vdl.kafka.codegen\n")
        return 1 if names else 0
    if arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    for name, text in generate().items():
        path = WIRE / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
