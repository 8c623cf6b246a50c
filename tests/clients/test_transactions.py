"""Clients that want transactions hear at once, and for good, that there are none."""

from __future__ import annotations

import pytest

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.driver import DriverFailed


def test_transactions_are_refused_with_a_final_error(client: Client, drivers: Drivers) -> None:
    """Its word for TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53), not that time was up: librdkafka
    asks again and again after an INVALID_REQUEST, until its caller's patience ends."""
    if client.name == "franz-go":
        pytest.skip("it asks for nothing before its first record")
    driver = drivers.of(client, 1)[0]
    with pytest.raises(DriverFailed) as failed:
        driver.ask("init_transactions", transactional_id="tx")
    text = str(failed.value).lower().replace(" ", "")
    assert "transactionalid" in text
    assert "authorization" in text or "authorized" in text
    assert "timedout" not in text
    assert "timeout" not in text
