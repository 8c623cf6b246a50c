"""The CRC of a whole from those of its parts."""

from crc32c import crc32c
from hypothesis import given
from hypothesis.strategies import binary, integers

from segments.format.joined_crc import joined_crc


@given(binary(max_size=300), binary(max_size=300), integers(0, 5_000))
def test_crc_of_two_parts_is_that_of_both(first: bytes, second: bytes, times: int) -> None:
    second = second * times
    assert joined_crc(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
