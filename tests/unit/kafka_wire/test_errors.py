"""Kafka's error codes."""

from kio.schema.errors import ErrorCode as KioErrorCode

from vdl.errors import ERRORS_BY_CODE, RETRIABLE_ERRORS, ErrorCode, KafkaError


def test_codes_are_dense_from_minus_one() -> None:
    """No number is missing, none is used twice."""
    assert sorted(ERRORS_BY_CODE) == list(range(-1, len(ErrorCode) - 1))


def test_codes_agree_with_an_independent_list() -> None:
    """Same name and same retriability under the same number, where kio knows the number."""
    for theirs in KioErrorCode:
        ours = ERRORS_BY_CODE[theirs.value]
        assert ours.name.lower() == theirs.name.lower()
        assert ours.is_retriable == theirs.retriable


def test_error_carries_its_code_and_message_as_data() -> None:
    """Data are fields; the text is for readers."""
    error = KafkaError(ErrorCode.CORRUPT_MESSAGE, "bad crc")
    assert (error.code, error.message, str(error)) == (2, "bad crc", "CORRUPT_MESSAGE: bad crc")
    assert str(KafkaError(ErrorCode.NONE)) == "NONE"
    assert ErrorCode.CORRUPT_MESSAGE in RETRIABLE_ERRORS
