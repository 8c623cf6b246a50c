"""Whether a producer's transaction is open: what a partition's leader asks before it appends the
first batch of one (KIP-890).

Producers of the first version of the protocol have told the coordinator of the partition, so it is
only asked; those of the second (Produce v12) leave that to the leader, and the partition is added.

What the coordinator says becomes what Kafka answers to a producer. Clients of older versions know
few of these codes: what passes by itself is told them as NOT_ENOUGH_REPLICAS, which they retry
without looking for anybody.

Must not know: logs, what the coordinator does.
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
"""The version of Produce from which on partitions are added by it."""
_ABORTABLE_FROM = 11
"""The version of Produce whose clients know TRANSACTION_ABORTABLE."""
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
    """Asks, or adds the partition, when it is called. `version`: of the request to produce."""
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
    """What a producer is told, by the version of its Produce."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if code in _PASSES or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < IMPLICIT_FROM):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
