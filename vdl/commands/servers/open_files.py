"""Descriptors of a server: the limit, and the clients that it allows."""

from __future__ import annotations

import contextlib
import resource
import sys
from dataclasses import replace

from vdl.config.settings import Config

FILES_KEPT = 512
"""Descriptors reserved for the store and for links to other servers."""


def raise_file_limit() -> int:
    """Raise the limit of descriptors to the maximum and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def within_files(config: Config, files: int) -> Config:
    """Return the configuration with at most as many clients as the descriptors allow: a store that
    cannot open a file ends its server."""
    most = max(1, files - min(FILES_KEPT, files // 2))
    if config.kafka.connections_max <= most:
        return config
    sys.stderr.write(
        f"vdl serve: the limit of open files is {files}, so clients are limited to {most}; "
        "raise `ulimit -n` for more\n"
    )
    return replace(config, kafka=replace(config.kafka, connections_max=most))
