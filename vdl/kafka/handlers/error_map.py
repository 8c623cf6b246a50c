"""Map from exceptions to the Kafka error codes that clients receive.

The place of the code in a response depends on the API: see `vdl.kafka.api.Api.failure`.

Rule: a code that clients treat as final is used only if the outcome is known. An unknown exception
is UNKNOWN_SERVER_ERROR, which says nothing about the outcome; an operation that may have happened
is REQUEST_TIMED_OUT.

Does not depend on handlers.
"""

from __future__ import annotations

from segments.api import (
    Compacted,
    CorruptRecord,
    NotInMemory,
    OffsetOutOfRange,
    ReadRefused,
    StorageError,
    Unavailable,
)
from vdl.errors import ErrorCode, KafkaError

_STORAGE_CODES: dict[type[BaseException], ErrorCode] = {
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    Compacted: ErrorCode.OFFSET_OUT_OF_RANGE,
    Unavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    NotInMemory: ErrorCode.KAFKA_STORAGE_ERROR,
    ReadRefused: ErrorCode.KAFKA_STORAGE_ERROR,
    CorruptRecord: ErrorCode.KAFKA_STORAGE_ERROR,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
}


def code_of(error: BaseException) -> ErrorCode:
    """Return the Kafka code of an exception caught by a handler."""
    if isinstance(error, KafkaError):
        return error.code
    for kind in type(error).__mro__:
        code = _STORAGE_CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
