"""Verification that a producer's transaction is open, requested by a partition's leader before it
appends the first batch of one (KIP-890).

Producers of the first protocol version have added the partition at the coordinator, so it is only
verified. Producers of the second (Produce v12) leave that to the leader, and the partition is
added.

The coordinator's error is mapped to Kafka's answer to a producer. Older clients know few of these
codes: a transient error becomes NOT_ENOUGH_REPLICAS, which they retry without looking for another
leader or coordinator.

Does not depend on logs, nor on the coordinator's work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ids import GroupId
from vdl.errors import ErrorCode
from vdl.kafka.host import Host, Verify
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.records.batch import BatchHeader
from vdl.state.commands import AddToTransaction, encode_command

IMPLICIT_FROM = 12
"""First version of Produce that adds partitions implicitly."""
_ABORTABLE_FROM = 11
"""First version of Produce whose clients know TRANSACTION_ABORTABLE."""
_FIRST, _SECOND = 1, 2
"""Versions of the protocol (`transaction.version`)."""
_PASSES = {
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def verification(
    host: Host,
    transactional_id: str,
    header: BatchHeader,
    group_id: GroupId,
    *,
    version: int,
    deadline_ns: int,
) -> Verify:
    """Return a function that verifies, or adds the partition. `version`: of the Produce request."""
    adds = version >= IMPLICIT_FROM
    command = AddToTransaction(
        transactional_id,
        header.producer_id,
        header.producer_epoch,
        [group_id],
        verify_only=not adds,
        version=_SECOND if adds else _FIRST,
    )

    def verify(done: Callable[[ErrorCode], None]) -> None:
        host.command_group(
            host.coordinator_group(transactional_id),
            encode_command(command),
            deadline_ns=deadline_ns,
            done=partial(_answered, version, done),
        )

    return verify


def _answered(version: int, done: Callable[[ErrorCode], None], outcome: Outcome) -> None:
    if outcome.kind is OutcomeKind.APPLIED:
        done(produce_code(outcome.result.error, version))
    else:
        # It may have been added: then it ends with the transaction.
        done(ErrorCode.NOT_ENOUGH_REPLICAS)


def produce_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error code for the producer, by the version of its Produce."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if code in _PASSES or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < IMPLICIT_FROM):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
