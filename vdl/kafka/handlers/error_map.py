"""The one map from what went wrong inside to what a client is told: exceptions to Kafka codes.

Where a response says its code is the API's own affair: see `vdl.kafka.api.Api.failure`.

Rule: a code that a client takes as final is used only where the outcome is known. What is not
understood is UNKNOWN_SERVER_ERROR, which promises nothing; what may have happened is
REQUEST_TIMED_OUT.

Must not know: which handler failed, or why.
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
    """The Kafka code of an exception that a handler met."""
    if isinstance(error, KafkaError):
        return error.code
    for kind in type(error).__mro__:
        code = _STORAGE_CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
