"""Parsers for values of a configuration file: sizes, durations, addresses, numbers within a range.

A parser takes a TOML value and returns the program's value, or raises ValueError with a description
of the expected value; the caller adds file and key to the message. Factories (`integer(1, 9)`) make
parsers with a range.

Does not depend on keys or files.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from urllib.parse import urlsplit

from rpc.tls_context import LinkEncryption
from vdl.kafka.security.principal import ANONYMOUS, Principal, parse_principal
from vdl.logstream.options import TICK_NS

TICK_MS = TICK_NS // 1_000_000
DAY_MS = 86_400_000
ADMIN_LISTENER = "ADMIN"
"""Name under which a server registers the address of its admin service."""
ADMIN_SETTING = "vdl.admin.listener"
"""Name of the setting that reports that address to clients. Kafka has no such setting."""
FILE_SYSTEM_SETTING = "vdl.data.filesystem"
"""Name of the setting by which servers whose data shares a disk are found."""
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

Scalar = str | int | bool | float
Parse = Callable[[Scalar], object]
"""Parser of a file's value. Raises ValueError(description of the expected value)."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address and a TCP port; port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_reachable(self) -> bool:
        """True if it can be advertised: it names one interface, and a port known beforehand."""
        if not self.port:
            return False
        if ":" in self.host:
            return not ipaddress.IPv6Address(self.host).is_unspecified
        return self.host not in {"0.0.0.0", ""}  # noqa: S104 - recognised, not bound

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


# 18 digits exceed every range and are below the number that Python refuses to parse.
_SIZE = re.compile(r"([0-9]{1,18})\s*([KMGT]i?B|B)?")
_SIZE_UNITS = {
    None: 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB,
}  # fmt: skip
_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(ms|s|m|h|d)")
_DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


def parse_size(raw: Scalar) -> int:
    """Parse bytes, from a number or a text with a unit. Raise ValueError(expected value)."""
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise ValueError('a size such as "64MiB"')
    return int(match[1]) * _SIZE_UNITS[match[2]]


def parse_duration_ms(raw: Scalar) -> int:
    """Parse milliseconds, from a text with a unit. Raise ValueError(expected value)."""
    match = _DURATION.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise ValueError('a duration such as "600ms" or "2h"')
    return round(float(match[1]) * _DURATION_UNITS_MS[match[2]])


def parse_address(raw: Scalar) -> Address:
    """Parse an address, "host:port" or "[IPv6]:port". Raise ValueError(expected value)."""
    match = _ADDRESS.fullmatch(raw) if isinstance(raw, str) else None
    if match is None or int(match[3]) > 65_535 or (match[1] and not _is_ipv6(match[1])):
        raise ValueError('an address such as "127.0.0.1:9092" or "[::1]:9092"')
    if match[2] and not _is_host(match[2]):
        raise ValueError(f"an address, but {match[2]!r:.80} is not a host name")
    return Address(match[1] or match[2], int(match[3]))


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    """Return True if the host can be resolved.

    An empty label, or one longer than 63 bytes, makes Python's resolver raise an exception of its
    own.
    """
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        return False
    return _HOST.fullmatch(name) is not None


def integer(low: int, high: int) -> Parse:
    """Return a parser of integers from `low` to `high`."""

    def parse(raw: Scalar) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return raw

    return parse


def size(low: int, high: int) -> Parse:
    """Return a parser of sizes from `low` to `high` bytes."""

    def parse(raw: Scalar) -> int:
        size = parse_size(raw)
        if not low <= size <= high:
            raise ValueError(f"a size from {show_size(low)} to {show_size(high)}")
        return size

    return parse


def ratio(raw: Scalar) -> float:
    """Parse a number from 0 to 1. Raise ValueError(expected value)."""
    if isinstance(raw, bool | str) or not 0 <= raw <= 1:
        raise ValueError("a number from 0 to 1")
    return float(raw)


def number_from(low: int) -> Parse:
    """Return a parser of numbers of at least `low`."""

    def parse(raw: Scalar) -> float:
        if isinstance(raw, bool | str) or not low <= raw <= float_info.max:
            raise ValueError(f"a number of at least {low}")
        return float(raw)

    return parse


def milliseconds(low: int, high: int) -> Parse:
    """Return a parser of milliseconds, as a number or a text with a unit."""

    def parse(raw: Scalar) -> int:
        duration_ms = raw if isinstance(raw, int) else parse_duration_ms(raw)
        if isinstance(raw, bool) or not low <= duration_ms <= high:
            raise ValueError(f"{low} to {high} milliseconds")
        return duration_ms

    return parse


def duration(low: int, high: int) -> Parse:
    """Return a parser like `milliseconds` that requires a unit."""

    def parse(raw: Scalar) -> int:
        duration_ms = parse_duration_ms(raw)
        if not low <= duration_ms <= high:
            raise ValueError(f'a duration from "{low}ms" to "{high}ms"')
        return duration_ms

    return parse


def ticks(low_ms: int, high_ms: int) -> Parse:
    """Return a parser of a duration that is kept as ticks of the Raft core."""
    parse_ms = duration(low_ms, high_ms)

    def parse(raw: Scalar) -> int:
        duration_ms = parse_ms(raw)
        assert isinstance(duration_ms, int), duration_ms
        if duration_ms % TICK_MS:
            raise ValueError(f"a multiple of {TICK_MS}ms")
        return duration_ms // TICK_MS

    return parse


def boolean(raw: Scalar) -> bool:
    """Parse true or false. Raise ValueError(expected value)."""
    if not isinstance(raw, bool):
        raise ValueError("true or false")
    return raw


def text(raw: Scalar) -> str:
    """Parse a text of at most 249 printable characters. Raise ValueError(expected value)."""
    if not isinstance(raw, str) or len(raw) > 249 or not raw.isprintable():
        raise ValueError("a string of at most 249 printable characters")
    return raw


def cluster_name(raw: Scalar) -> str:
    """Parse the name of a cluster. Raise ValueError(expected value)."""
    if not isinstance(raw, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", raw):
        raise ValueError("a name of at most 64 letters, digits, '.', '_' and '-'")
    return raw


def principals(raw: Scalar) -> tuple[Principal, ...]:
    """Parse names such as "User:alice", separated by semicolons as in Kafka."""
    if not isinstance(raw, str):
        raise ValueError('principals such as "User:alice;User:bob"')
    found = tuple(parse_principal(part.strip()) for part in raw.split(";") if part.strip())
    if ANONYMOUS in found:
        raise ValueError(f"principals other than {ANONYMOUS}, which stands for every client")
    return found


def path(raw: Scalar) -> Path:
    """Parse a path. Raise ValueError(expected value)."""
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError("a path")
    return Path(raw)


def path_or_off(raw: Scalar) -> Path | None:
    """Parse a path, or "off" as None. Raise ValueError(expected value)."""
    return None if raw == "off" else path(raw)


def otlp_endpoint(raw: Scalar) -> str:
    """Parse the base URL of a receiver of OTLP, or "environment"; "off" as "". Raise
    ValueError(expected value)."""
    if raw == "off":
        return ""
    if raw == "environment":
        return raw
    if isinstance(raw, str) and raw.startswith(("http://", "https://")):
        try:
            if urlsplit(raw).hostname:
                return raw
        except ValueError:  # such as a port that is no number
            pass
    raise ValueError('"off", "environment" or a URL such as "http://127.0.0.1:4318"')


def choice(*allowed: str) -> Parse:
    """Return a parser that accepts only the given texts."""

    def parse(raw: Scalar) -> str:
        if not isinstance(raw, str) or raw not in allowed:
            raise ValueError(" or ".join(f'"{choice}"' for choice in allowed))
        return raw

    return parse


def link_encryption(raw: Scalar) -> LinkEncryption:
    """Parse the name of a `LinkEncryption`. Raise ValueError(expected value)."""
    names = [one.value for one in LinkEncryption]
    return LinkEncryption(choice(*names)(raw))


def address_or_off(raw: Scalar) -> Address | None:
    """Parse an address, or "off" as None. Raise ValueError(expected value)."""
    if raw == "off":
        return None
    try:
        return parse_address(raw)
    except ValueError as error:
        raise ValueError(f'{error}, or "off"') from None


def show_size(size: int) -> str:
    """Return a size as text, in the largest unit that divides it."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size} bytes"
