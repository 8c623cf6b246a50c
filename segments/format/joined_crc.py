"""CRC32C of bytes whose parts have been checksummed apart.

A CRC is the remainder of a polynomial over GF(2), so that of A + B is the CRC of A times
x^(8 * length of B), plus the CRC of B. The bits of a CRC are reflected: bit 31 is x^0.

Does not depend on frames.
"""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def _times(a: int, b: int) -> int:
    """Return a * b modulo the polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def joined_crc(first: int, second: int, length: int) -> int:
    """Return the CRC of A + B, from that of A, that of B, and the number of bytes of B.

    It takes as long as the checksum of some hundred kilobytes.
    """
    power = _ONE >> 8  # x^8, then its squares
    while length:
        if length & 1:
            first = _times(power, first)
        power = _times(power, power)
        length >>= 1
    return first ^ second
