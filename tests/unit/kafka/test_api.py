"""The API table and ApiVersions."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.kafka.fake_host import World
from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, Later, Reply
from vdl.kafka.api import API, ROWS, TELEMETRY_KEYS, Api, advertised
from vdl.kafka.codegen.uses import OLDER_VERSIONS
from vdl.kafka.wire import registry
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.state import commands
from vdl.state.resource_configs import ResourceType

API_VERSIONS = 18
ROW = pytest.mark.parametrize("api", ROWS, ids=lambda api: api.name)


@ROW
def test_api_row_names_a_handler_and_a_codec(api: Api) -> None:
    """Lazy names resolve: a handler of two arguments, a codec of this key that has the versions."""
    assert len(inspect.signature(api.handler).parameters) == 2
    assert (api.key, api.name) == (api.wire.API_KEY, api.wire.NAME)
    assert api.wire.MIN_VERSION <= api.min_version <= api.max_version <= api.wire.MAX_VERSION


def test_loaded_apis_need_no_module_for_their_first_request() -> None:
    """Runs in a process of its own, since other tests have loaded some modules here."""
    program = (
        "import sys\n"
        "from vdl.kafka.api import ROWS, load\n"
        "load()\n"
        "before = set(sys.modules)\n"
        "assert all(row.wire and row.handler for row in ROWS)\n"
        "print(len(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"


@ROW
def test_api_failure_can_be_sent_in_every_version(api: Api) -> None:
    """A handler that raises gets a response in any API and version: the response encodes."""
    request_class = getattr(api.wire, f"{api.name}Request")
    request = request_class()
    if api.pipelined:
        request.acks = -1
    for version in range(api.min_version, api.max_version + 1):
        response = api.failure(request, version, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert api.wire.encode_response(response, version)


def test_failed_produce_without_acks_closes_the_connection() -> None:
    """A frame would be taken for the response to the next request."""
    api = API[0]
    request = api.wire.ProduceRequest(acks=0)
    assert api.failure(request, 9, ErrorCode.UNKNOWN_SERVER_ERROR) is Reply.CLOSE


@ROW
def test_api_array_that_is_passed_on_is_in_the_request(api: Api) -> None:
    """Its elements are counted when the request is decoded."""
    if api.passed_on:
        assert getattr(getattr(api.wire, f"{api.name}Request")(), api.passed_on) == []


def test_own_clients_speak_the_newest_version_that_is_offered() -> None:
    """A client of the same build never falls back to an older layout."""
    newest = {API[key].name: last for key, _, last in advertised(has_telemetry=True)}
    for name in OLDER_VERSIONS:
        assert newest[name] in API[registry.KEYS[name]].wire.CLIENT_VERSIONS, name


def test_api_keys_are_unique_and_only_produce_overlaps() -> None:
    """Kafka's rule for a connection is one request at a time."""
    assert len(API) == len(ROWS)
    assert [api.name for api in ROWS if api.pipelined] == ["Produce"]


def test_later_completes_once_and_not_for_nobody() -> None:
    """A second response is a bug. A response for a disconnected client is dropped."""
    later = Later()
    later.complete("answer")
    with pytest.raises(AssertionError):
        later.complete("another")
    released: list[bool] = []
    gone = Later()
    gone.on_cancel = lambda: released.append(True)
    gone.cancel()
    gone.complete("answer")
    gone.cancel()
    assert (gone.done, released) == (False, [True])


def test_later_takes_the_exception_of_a_step_as_its_answer() -> None:
    """The caller of the step continues; the client gets the error."""
    later = Later()

    def step() -> None:
        raise ValueError("no")

    later.run(step)
    assert isinstance(later.response, ValueError)
    later.run(step)


@pytest.mark.parametrize("version", range(6))
def test_api_versions_of_each_version_lists_the_table(version: int) -> None:
    """The advertised versions are the accepted ones; InitProducerId stops below v6 (KIP-939).

    The client metrics APIs are listed only while subscriptions exist: other clients would poll them
    for nothing (KIP-714).
    """
    request = ApiVersionsRequest("fake", "1.0")
    world = World()
    answer = world.client().ask(API_VERSIONS, version, request)
    keys = {api.api_key for api in answer.api_keys}
    assert API.keys() - keys == TELEMETRY_KEYS
    change = commands.ConfigChange("s", {"metrics": "a."}, replaces=True)
    world.host.apply(commands.AlterResourceConfigs([(ResourceType.CLIENT_METRICS, change)]))
    answer = world.client().ask(API_VERSIONS, version, request)
    assert answer.error_code == ErrorCode.NONE
    rows = [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys]
    assert rows == list(advertised())
    by_key = {key: (low, high) for key, low, high in rows}
    assert by_key[0][0] == 0, "librdkafka infers compression from Produce v0 (KAFKA-18659)"
    assert by_key[22][1] < 6


def test_api_versions_of_an_unknown_version_is_answered_in_version_0() -> None:
    """KIP-35: error 35 and the range of ApiVersions alone. The connection stays open."""
    client = World().client()
    client.session.receive(client.frame(API_VERSIONS, 99, b"\x02x\x02y\x00"))
    client.expected = [(API_VERSIONS, 0, 1)]
    (answer,) = client.answers()
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (own,) = answer.api_keys
    assert (own.api_key, own.min_version, own.max_version) == (18, 0, 5)
    good = client.ask(API_VERSIONS, 3, ApiVersionsRequest("fake", "1.0"))
    assert good.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1"), ("-x", "1"), ("x", "1."), ("a b", "1"), ("x", ""), ("x\n", "1"), ("\xe9", "1")],
)
def test_api_versions_of_a_strangely_named_client_is_refused(name: str, version: str) -> None:
    """KIP-511: names and versions have a form. The connection stays open."""
    client = World().client()
    answer = client.ask(API_VERSIONS, 3, ApiVersionsRequest(name, version))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not client.closed


def test_api_versions_remembers_what_the_client_is() -> None:
    """The name is part of the log line at the end of the connection."""
    client = World().client()
    client.ask(API_VERSIONS, 3, ApiVersionsRequest("librdkafka", "2.15.0"))
    assert client.session.info.client_software_name == "librdkafka"


def test_starting_loads_no_handler_that_was_not_asked_for() -> None:
    """The table names modules as text, so a server starts with few of them loaded."""
    import subprocess
    import sys

    code = (
        "import sys, vdl.kafka.connections.frontend, vdl.kafka.connections.listener;"
        "print([m for m in sys.modules if m.startswith('vdl.kafka.wire.') or "
        "m.startswith('vdl.kafka.handlers.')])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert "fetch" not in done.stdout
    assert "api_versions" in done.stdout


def test_gathering_is_the_response_when_all_parts_are_there() -> None:
    """Parts completed at once cost no waiting. None completes it before the handler returns."""
    at_once = Gathering("response")
    for _ in range(2):
        at_once.expect()
        at_once.arrived()
    assert not at_once.later.done
    assert at_once.result() == "response"
    assert Gathering("nothing asked").result() == "nothing asked"


def test_gathering_completes_with_its_last_part() -> None:
    """Any part may be the last."""
    parts = Gathering("response")
    for _ in range(3):
        parts.expect()
    parts.arrived()
    later = parts.result()
    assert isinstance(later, Later)
    parts.arrived()
    assert not later.done
    parts.arrived()
    assert (later.done, later.response) == (True, "response")
