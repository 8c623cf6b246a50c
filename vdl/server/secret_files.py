"""Check of files with secrets that every user of the machine may read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from vdl.config.settings import Config


def readable_by_others(config: Config) -> list[Path]:
    """Return keys and credentials that others than their owner and group may read or write. Access
    of groups is accepted: mounted secrets often reach a process through its group."""
    return [path for path in dict.fromkeys(_secrets(config)) if _mode(path) & stat.S_IRWXO]


def _secrets(config: Config) -> Iterator[Path]:
    named = [
        config.tls.key, config.first_users, config.delegation_key, config.other_delegation_key,
        config.console.registry_login,
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
        return 0  # reading it later reports the error
