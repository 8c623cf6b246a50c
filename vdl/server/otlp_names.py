"""Names of metrics for OpenTelemetry, made of those of `/metrics`.

`vdl_<source>_<key>` becomes `vdl.<source>.<key>`. The unit moves from the end of the name to the
unit: seconds are a `duration` in s, bytes a `size` in By. `_total` goes, because the kind of a
metric says that it is a counter. Metrics that all programs have get the names of the semantic
conventions.

Does not depend on the SDK, or on which metrics there are.
"""

from __future__ import annotations

from typing import Final

EXCEPTIONS: Final = {
    "process_cpu_seconds_total": ("process.cpu.time", "s"),
    "process_resident_memory_bytes": ("process.memory.usage", "By"),
    "process_open_fds": ("process.unix.file_descriptor.count", "{file_descriptor}"),
    "process_start_time_seconds": ("process.start_time", "s"),
    # Without `_total` it would have the name of the gauge.
    "vdl_server_overloaded_total": ("vdl.server.overload_periods", ""),
}
"""Name in `/metrics` → name, where the rules do not make it, and unit."""

_UNITS: Final = (
    ("bytes_per_second", "rate", "By/s"),
    ("seconds", "duration", "s"),
    ("bytes", "size", "By"),
    ("ratio", "utilization", "1"),
)


def otel_name(name: str) -> tuple[str, str]:
    """Return (name, unit) in OpenTelemetry of a metric of `/metrics`; unit "" for counts."""
    if name in EXCEPTIONS:
        return EXCEPTIONS[name]
    prefix, source, key = (*name.removesuffix("_total").split("_", 2), "")[:3]
    unit = ""
    for suffix, word, of_suffix in _UNITS:
        if key == suffix or key.endswith(f"_{suffix}"):
            key, unit = f"{key.removesuffix(suffix).rstrip('_')}.{word}".lstrip("."), of_suffix
            break
    return ".".join(part for part in (prefix, source, key) if part), unit
