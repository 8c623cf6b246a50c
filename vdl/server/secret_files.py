"""Files with secrets that everybody on the machine may read.

Must not know: what is in them.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from vdl.config.settings import Config


def readable_by_others(config: Config) -> list[Path]:
    """Keys, and credentials of users, that others than their owner and group may read or write.
    Groups are let be: where secrets are mounted for a process, they are often how it gets them."""
    return [path for path in dict.fromkeys(_secrets(config)) if _mode(path) & stat.S_IRWXO]


def _secrets(config: Config) -> Iterator[Path]:
    named = [
        config.tls.key, config.first_users, config.delegation_key, config.other_delegation_key,
    ]  # fmt: skip
    for listener in config.listeners:
        if listener.protocol.is_encrypted:
            pairs = [listener.tls.own, *listener.tls.others]
            named += [pair.key for pair in pairs if pair is not None]
    for path in named:
        if path is not None:
            yield path


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0  # whoever reads it says what is wrong
