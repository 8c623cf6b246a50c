"""Old names of metrics, which a page has besides the new ones for one release.

A name that breaks a convention of Prometheus (base units, unit last, `_total` for counters) is
replaced. This is the one place that says by what. A row is removed in the release after the one
that added it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Old:
    """An old name. Its value is the new one, times `times`."""

    name: str
    times: float = 1


RENAMED: dict[str, Old] = {
    "process_cpu_seconds_total": Old("vdl_process_cpu_seconds_total"),
    "process_open_fds": Old("vdl_process_open_descriptors"),
    "process_resident_memory_bytes": Old("vdl_process_resident_bytes"),
    "process_start_time_seconds": Old("vdl_process_start_time_seconds"),
    "vdl_server_answer_memory_max_bytes": Old("vdl_server_answer_memory_bytes_max"),
    "vdl_server_request_memory_max_bytes": Old("vdl_server_request_memory_bytes_max"),
    "vdl_store_compaction_freed_bytes_total": Old("vdl_store_compaction_freed_bytes"),
    "vdl_store_compaction_read_bytes_total": Old("vdl_store_compaction_read_bytes"),
    "vdl_store_compaction_segments_joined_total": Old("vdl_store_compaction_segments_joined"),
    "vdl_store_compaction_segments_rewritten_total": Old("vdl_store_compaction_segments_rewritten"),
    "vdl_store_journal_write_max_seconds": Old("vdl_store_journal_write_ns_max", 1e9),
}
"""New name → old name."""

REPLACED: dict[str, str] = {
    "vdl_kafka_request_seconds_total": 'vdl_request_seconds_sum{phase="total"}',
    "vdl_store_journal_write_ns_total": "vdl_store_journal_write_seconds_sum",
}
"""Old name, whose value the sources still give → the part of a histogram that replaces it."""


def deprecation(new: str) -> str:
    """Return the help text of an old name."""
    return f"Deprecated, and not in the next release: use {new}."
