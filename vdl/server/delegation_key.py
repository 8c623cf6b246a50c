"""Keys for the secrets of delegation tokens: files, the same on every server."""

from __future__ import annotations

from pathlib import Path

from vdl.config.settings import Config, ConfigError
from vdl.kafka.security.delegation_keys import DelegationKeys

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 4 << 10


def read_delegation_keys(config: Config) -> DelegationKeys:
    """Read the keys that the configuration names. Raises ConfigError."""
    current, other = config.delegation_key, config.other_delegation_key
    if current is None:
        return DelegationKeys()
    return DelegationKeys(_read(current), _read(other) if other is not None else b"")


def _read(path: Path) -> bytes:
    """Return the contents of the file without surrounding space. Raises ConfigError, which contains
    nothing of the file."""
    try:
        with path.open("rb") as file:
            key = file.read(KEY_BYTES_MAX + 1).strip()
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or str(error)) from None
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        expected = f"expected a file of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes"
        raise ConfigError(str(path), "", expected)
    return key
