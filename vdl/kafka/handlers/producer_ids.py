"""InitProducerId (key 22) v0–5: an id for a producer that wants to write each record once.

v3 lets a producer say which id and epoch it had (KIP-360). Without a transactional id there is
nothing to fence, so it gets a new id then too, as from any broker.

Each id is a command to the catalog. Producers start rarely, the command is batched with whatever
else the turn brings, and a server needs to remember no block of ids.

There are no transactions here: nobody may use a transactional id. That error (53), here and where
a client looks for the transaction coordinator first, is the one that librdkafka, the Java client
and kafka-python all report as final at once; librdkafka asks again for ever after an invalid
request, all do after 14, 15, 16 and 51. v6 is about two-phase commit (KIP-939).

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
