"""Finalised features, read and changed by an unmodified client."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated")
"""kafka-python reads its schemas through a deprecated interface."""

FEATURE = "metadata.version"


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = import_module("kafka.admin").KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    yield client
    client.close()


def test_features_are_finalised_from_the_start(admin: Any) -> None:
    """Features are finalised as soon as clients are served.

    All servers have reported their levels.
    """
    feature = admin.describe_features()[FEATURE]
    assert feature["finalized_epoch"] >= 1
    _, highest = feature["supported"]
    assert feature["finalized"] == (highest, highest)


def test_level_that_no_server_understands_is_refused(admin: Any) -> None:
    """An unsupported level is refused with the feature's name; the finalised level stays."""
    before = admin.describe_features()
    with pytest.raises(import_module("kafka.errors").InvalidUpdateVersionError) as refused:
        admin.update_features({FEATURE: 99})
    assert FEATURE in str(refused.value)
    assert admin.describe_features() == before
