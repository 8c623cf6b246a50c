"""Within a package, too, imports point one way: there are no import cycles."""

from tests.tidy.test_imports import imports_of, is_module, module_name, sources

KNOWN: dict[tuple[str, ...], str] = {
    ("vdl.logstream.group.group", "vdl.logstream.group.outbox"): (
        "a group puts itself into the outbox that the host empties"
    ),
    (
        "vdl.sim.closed_server",
        "vdl.sim.filled_disks",
        "vdl.sim.lateness",
        "vdl.sim.one_fault",
        "vdl.sim.slow_learner",
        "vdl.sim.world",
    ): ("a judge of a whole world drives that world, and the world decides when it has its turn"),
}
"""Known import cycles, by the names of their modules, with the reason."""


def imports_within_rooms():
    """Return, by module, its imports within its own folder, also those for types only."""
    rooms = {}
    modules = {module_name(path): path for path in sources()}
    for module, path in modules.items():
        room = module.rpartition(".")[0]
        reached = set()
        for _, name, part in imports_of(path):
            target = f"{name}.{part}" if is_module(f"{name}.{part}") else name
            if target in modules and target != module and target.rpartition(".")[0] == room:
                reached.add(target)
        rooms[module] = reached
    return rooms


def circles(imports):
    """Return sets of modules that all import each other, directly or indirectly."""
    reached = {module: set(direct) for module, direct in imports.items()}
    is_growing = True
    while is_growing:
        is_growing = False
        for found in reached.values():
            before = len(found)
            for module in list(found):
                found |= reached.get(module, set())
            is_growing |= len(found) > before
    return {
        frozenset(other for other in found if module in reached.get(other, ()))
        for module, found in reached.items()
        if module in found
    }


def test_circles_of_imports_are_known_with_a_reason():
    """Two modules in a cycle cannot be read, tested or moved separately."""
    found = circles(imports_within_rooms())
    assert sorted(tuple(sorted(circle)) for circle in found) == sorted(KNOWN)


def test_circles_are_found_over_several_files():
    """Cycles of two files, of three files, and files that only share their imports."""
    pair = {"r.a": {"r.b"}, "r.b": {"r.a"}, "r.c": {"r.a"}}
    assert circles(pair) == {frozenset(("r.a", "r.b"))}
    three = {"r.a": {"r.b"}, "r.b": {"r.c"}, "r.c": {"r.a", "r.d"}, "r.d": set()}
    assert circles(three) == {frozenset(("r.a", "r.b", "r.c"))}
    assert circles({"r.a": {"r.c"}, "r.b": {"r.a", "r.c"}, "r.c": set()}) == set()
