"""InitProducerId (key 22) v0–5: an id for an idempotent producer.

v3: a producer may name its id and epoch (KIP-360), both or neither. Without a transactional id
there is nothing to fence, so it gets a new id, as from Kafka. v6 is about two-phase commit
(KIP-939) and not spoken.

Each id is a command to the catalog. Producers start rarely, the command is batched with others of
the turn, and no server has to remember a block of ids.

There are no transactions. A transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED
(53), here and when a client looks for the transaction coordinator: librdkafka, the Java client and
kafka-python all treat that as final at once. After an invalid request librdkafka retries for ever;
after 14, 15, 16 and 51 all do.

Must not know: what producers write.
"""

from __future__ import annotations

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.wire.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import AllocateProducerIds


def handle_init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> Later | InitProducerIdResponse:
    """A new id, epoch 0. Errors are ones that clients try again."""
    names_one_of_both = (request.producer_id == -1) != (request.producer_epoch == -1)
    if request.transactional_id == "" or names_one_of_both:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=-1
        )
    later = Later()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            later.complete(InitProducerIdResponse(producer_id=outcome.result.first))
        else:
            # An id that was taken and is not used is no loss. Of the errors clients try again,
            # only this one does not make them look for a transaction coordinator first.
            later.complete(
                InitProducerIdResponse(
                    error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1
                )
            )

    deadline_ns = ctx.server.clock.now_ns() + ctx.server.config.read_timeout_ms * MS
    ctx.server.host.propose_catalog(AllocateProducerIds(1), deadline_ns=deadline_ns, done=decided)
    return later
