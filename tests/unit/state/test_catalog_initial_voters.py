"""A new cluster's topics wait for all initial voters, and are not created with fewer replicas."""

from vdl.errors import ErrorCode
from vdl.state.catalog import Catalog
from vdl.state.commands import CreateTopics, NewTopic, RegisterServer


def test_default_replication_counts_initial_voters_that_have_not_registered_yet() -> None:
    catalog = Catalog("cluster", initial_voters={n: bytes([n]) * 16 for n in (1, 2, 3)})
    create = CreateTopics([NewTopic("events", bytes(16))])
    for server_id in (1, 2):
        catalog.apply(
            RegisterServer(server_id, bytes([server_id]) * 16, "", {}, True), 0, server_id
        )
        refused = catalog.apply(create, 0, 10)
        assert refused.topics[0].error is ErrorCode.INVALID_REPLICATION_FACTOR
    catalog.apply(RegisterServer(3, bytes([3]) * 16, "", {}, True), 0, 3)
    made = catalog.apply(create, 0, 11)
    assert made.topics[0].replication_factor == 3
