"""Imports point one way only, and the pure layers stay pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ids", "raft", "segments", "rpc", "vdl")

LAYERS: list[tuple[str, ...]] = [
    ("vdl.cli",),
    ("vdl.commands",),
    ("vdl.commands.changes",),
    ("vdl.commands.checks", "vdl.commands.measurement", "vdl.commands.tools"),
    ("vdl.commands.records", "vdl.commands.resources"),
    ("vdl.commands.cluster", "vdl.commands.servers"),
    ("vdl.commands.output", "vdl.commands.times"),
    ("vdl.commands.interrupts", "vdl.commands.terminal_text", "vdl.commands.workers"),
    ("vdl.testing",),
    ("vdl.sim", "vdl.server.process"),
    ("vdl.console", "vdl.server.machine"),
    (
        "vdl.server.administration",
        "vdl.server.loop",
        "vdl.server.otlp",
        "vdl.server.recovery_progress",
        "vdl.server.sources",
    ),
    ("vdl.server.diagnosis", "vdl.server.group_description", "vdl.server.offline_users"),
    (
        "vdl.server.delegation_key",
        "vdl.server.first_users",
        "vdl.server.secret_files",
        "vdl.server.server_tls",
        "vdl.server.side_thread",
        "vdl.server.token_keys",
    ),
    ("vdl.server.server",),
    ("vdl.server.file_settings", "vdl.server.front", "vdl.server.partition_counts"),
    ("vdl.config.exposure",),
    ("vdl.config.settings",),
    ("vdl.config.console", "vdl.config.listeners"),
    ("vdl.config.values",),
    (
        "vdl.server.audit_file",
        "vdl.server.group_lag",
        "vdl.server.metrics",
        "vdl.server.otlp_exporter",
        "vdl.server.topic_traffic",
        "vdl.pipeline",
        "vdl.kafka.connections",
    ),
    ("vdl.kafka.handlers",),
    ("vdl.kafka.permissions",),
    ("vdl.kafka.api", "vdl.kafka.lookup", "vdl.kafka.parts"),
    ("vdl.kafka.context",),
    ("vdl.kafka.groups", "vdl.kafka.share", "vdl.kafka.telemetry", "vdl.kafka.views"),
    ("vdl.kafka.configs",),
    ("vdl.kafka.limits", "vdl.kafka.partitions", "vdl.kafka.security", "vdl.kafka.transactions"),
    ("vdl.kafka.answer", "vdl.kafka.fair_queue", "vdl.kafka.host", "vdl.kafka.room_shares"),
    ("vdl.kafka.shares",),
    ("vdl.server.exposition",),
    ("vdl.server.explain", "vdl.server.otlp_names"),
    ("vdl.server.http", "vdl.server.problem"),
    ("vdl.logstream.host",),
    ("vdl.logstream.periodic",),
    ("vdl.logstream.cleanup", "vdl.logstream.majority_loss"),
    ("vdl.logstream.membership",),
    ("vdl.logstream.elections",),
    ("vdl.logstream.peers",),
    ("vdl.logstream.state",),
    ("vdl.logstream.bootstrap", "vdl.logstream.front"),
    ("vdl.logstream.group",),
    ("vdl.logstream.time",),
    ("vdl.logstream.options", "vdl.logstream.stats"),
    ("vdl.state",),
    ("vdl.kafka.client",),
    ("vdl.kafka.security.client_settings", "vdl.kafka.security.scram_client"),
    ("vdl.kafka.security.scram",),
    ("vdl.kafka.security.mechanism",),
    ("vdl.kafka.security.principal", "vdl.kafka.security.protocol"),
    ("vdl.kafka.codegen", "vdl.kafka.wire"),
    ("vdl.records.legacy",),
    ("vdl.records.compaction",),
    ("vdl.records.markers",),
    ("vdl.records.batch",),
    ("vdl.records.walk",),
    ("vdl.records.inflation",),
    ("vdl.records.compression",),
    ("vdl.patterns",),
    ("vdl.check", "vdl.listening", "vdl.log", "vdl.errors", "vdl.clock"),
    ("vdl.events",),
    ("vdl.config", "vdl.kafka", "vdl.logstream", "vdl.records", "vdl.server"),
    ("vdl",),
    ("rpc",),
    ("raft", "segments.tool"),
    ("segments.store", "segments.memory"),
    ("segments.recovery",),
    ("segments.checkpoint", "segments.compaction"),
    ("segments.directory", "segments.journal", "segments.meta"),
    ("segments.log",),
    ("segments.io",),
    ("segments.format",),
    ("segments.api",),
    ("segments",),
    ("ids",),
]
"""Top to bottom.

A module imports its own component and those of lower rows, never upwards and never sideways. The
longest matching prefix decides.
"""

PURE = ("raft", "vdl.state")
"""Pure packages.

Time is given to them as ticks or arguments, randomness as a `random.Random`, disk and network as
values.
"""

IMPURE_MODULES = {
    "asyncio", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip

ASYNCIO_EDGES = {
    "rpc/admin_gate.py",
    "rpc/admin_service.py",
    "rpc/transport.py",
    "vdl/console/process.py",
    "vdl/server/http.py",
    "vdl/kafka/connections/listener.py",
    "vdl/kafka/connections/socket_writes.py",
    "vdl/kafka/connections/tls_listener.py",
    "vdl/server/loop.py",
    "vdl/server/process.py",
    "vdl/testing/server_process.py",
}
"""Files that use the event loop; everything else can be driven in one thread on virtual time."""

PIPELINE_PACKAGES = ("vdl.pipeline", "pyarrow", "pyspark", "deltalake", "pyiceberg", "moto")

NOT_BEFORE_LISTENING = {
    "click", "confluent_kafka", "google.protobuf", "grpc", "http.client", "numpy", "opentelemetry",
    "prometheus_client", "pyarrow", "pyiceberg", "pyspark", "re2", "rich", "vdl.console",
    "vdl.pipeline", "vdl.testing",
}  # fmt: skip
"""Packages that a server does not load at its start, to save memory and time."""


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports_of(path, *, typing_only=True):
    """Return (line, imported module, name) of every import; `from a import b` yields a and b."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set()
    if not typing_only:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(id(inner) for body in node.body for inner in ast.walk(body))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, node.module, alias.name) for alias in node.names]
    return found


def is_module(name):
    """Return True for a module of this project: `vdl.errors`, but not `vdl.__version__`."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def component_of(module):
    """Return the row of LAYERS and the component of a module, None for third-party modules."""
    best = None
    for rank, row in enumerate(LAYERS):
        for component in row:
            is_inside = module == component or module.startswith(f"{component}.")
            if is_inside and (best is None or len(component) > len(best[1])):
                best = (rank, component)
    return best


def wrong_way(path):
    """Return the imports of a file that point up or sideways."""
    rank, own = component_of(module_name(path))
    wrong = []
    for line, module, name in imports_of(path):
        target = f"{module}.{name}" if is_module(f"{module}.{name}") else module
        found = component_of(target)
        if found is not None and found[1] != own and found[0] <= rank:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} must not import {target}")
    return wrong


def test_imports_between_layers_point_down_only():
    """cli → sim → server → kafka → logstream → {state, rpc → raft, segments}."""
    assert [problem for path in sources() for problem in wrong_way(path)] == []


def test_imports_every_module_has_its_layer():
    """A new part of `vdl` must be given a layer."""
    houses = {"vdl", "vdl.kafka", "vdl.logstream"}
    modules = [module_name(path) for path in sources()]
    unplaced = [
        module for module in modules if component_of(module)[1] in houses and module not in houses
    ]
    assert unplaced == []


def test_imports_rpc_knows_only_what_raft_sends():
    """`rpc` carries Raft's messages; it does not run Raft."""
    allowed = {"raft", "raft.messages", "raft.types"}
    reached = {
        f"{path.name}:{line}: {module}"
        for path in sources()
        if module_name(path).startswith("rpc")
        for line, module, _ in imports_of(path)
        if module.split(".")[0] == "raft" and module not in allowed
    }
    assert reached == set()


def test_imports_pure_layers_have_no_clock_luck_or_outside():
    """`raft` and `vdl.state` can be replayed: their results do not vary between runs."""
    wrong = []
    for path in sources():
        if not module_name(path).startswith(PURE):
            continue
        for line, module, name in imports_of(path):
            if module == "random" and name == "Random":
                continue
            if module.split(".")[0] in IMPURE_MODULES:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert wrong == []


def test_imports_pipeline_knows_only_what_a_client_knows():
    """The pipeline imports stored formats, the client protocol and the checkers; no server."""
    allowed = {
        "ids", "segments", "vdl.check", "vdl.kafka.client",
        "vdl.kafka.security.client_settings", "vdl.kafka.wire", "vdl.pipeline", "vdl.records",
    }  # fmt: skip
    assert imports_outside("vdl.pipeline", allowed) == set()


def test_imports_only_its_own_tests_need_the_pipelines_packages():
    """Spark and its packages are installed for their stage alone."""
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not path.is_relative_to(ROOT / "tests" / "pipeline")
        for line, module, _ in imports_of(path)
        if any(is_within(module, package) for package in PIPELINE_PACKAGES)
    ]
    assert found == []


def test_imports_check_knows_nothing_of_ours():
    """The checkers run anywhere: in the simulator, in a test harness, in Spark executors."""
    assert imports_outside("vdl.check", {"vdl.check"}) == set()


def imports_outside(component, allowed):
    """Return this project's imports in a component, except those of the allowed components."""
    return {
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in sources()
        if is_within(module_name(path), component)
        for line, module, name in imports_of(path)
        if module.split(".")[0] in PACKAGES
        # `from vdl import check` imports vdl.check.
        and not any(is_within(f"{module}.{name}", one) for one in allowed)
    }


def is_within(module, component):
    return module == component or module.startswith(f"{component}.")


def test_imports_asyncio_only_at_the_edges():
    """The event loop is used only at sockets and in the process itself."""
    users = {
        str(path.relative_to(ROOT))
        for path in sources()
        for _, module, _ in imports_of(path)
        if module.split(".")[0] in {"asyncio", "uvloop"}
    }
    assert users <= ASYNCIO_EDGES


def test_imports_disk_only_in_the_file_system():
    """`segments` accesses files through one module, so that the simulator can replace it."""
    users = {
        path.name
        for path in sources()
        if module_name(path).startswith("segments")
        for _, module, _ in imports_of(path)
        if module.split(".")[0] in {"os", "io", "lmdb", "mmap", "fcntl", "pathlib", "shutil"}
    }
    assert users <= {"fs.py", "failpoint.py", "tool.py"}


@pytest.mark.parametrize("entry", ["vdl.commands.serve", "vdl.server.process"])
def test_server_start_loads_no_command_line_and_no_grpc(entry):
    """Packages that only user commands need are not loaded by a server."""
    code = f"import sys, {entry}; print(*(m for m in {NOT_BEFORE_LISTENING} if m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert loaded.stdout.strip() == ""
