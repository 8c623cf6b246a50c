"""Problems and summaries of all servers, as `vdl status` has them.

They come over the admin plane, with the certificate of this server. That is for servers and
administrators, so the answers are for users who may describe the cluster and its configuration
(Kafka's permissions), and names of partitions only for users who may see their topics. Other users
get what /health of this server says to everyone.

All sessions share one answer, so that many pages cost the servers no more than one.

Does not depend on HTTP.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ids import GroupId
from rpc.errors import AdminError, TlsFailed
from rpc.tls_context import TlsFiles
from vdl.config.values import ADMIN_LISTENER, ADMIN_SETTING, parse_address
from vdl.console.question import DESCRIBE_CONFIGS, Address, Question
from vdl.kafka.client import Unreachable
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.server.explain.facts import ServerFacts
from vdl.server.problem import CLUSTER_KINDS, NO_LEADER, NOT_WRONG, SERVER_KINDS, Problem

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient


ANSWER_SECONDS: Final = 2.0
ADMIN_SECONDS: Final = 3.0
HEALTH_SECONDS: Final = 3.0
TEXTS_MAX: Final = 20
RUNBOOK: Final = "deploy/runbook.md#"
_HEALTH_BYTES_MAX: Final = 4 << 20
_BROKER: Final = 4
_DESCRIBE_BITS: Final = 1 << 8 | 1 << 10
"""Operations DESCRIBE and DESCRIBE_CONFIGS in Kafka's bit set."""
_PARTITION: Final = re.compile(r"(?:^| of )(\S+)-[0-9]+ ")
_CATALOG: Final = GroupId(0)
_OWN_GROUPS: Final = [GroupId(number) for number in range(65)]
"""The catalog and as many coordinators as a cluster may have."""
_Found = TypeVar("_Found")


@dataclass(slots=True)
class Report:
    """Summary of one server over its admin plane. `reason`: why there is none."""

    server: int
    reason: str = ""
    version: str | None = None
    uptime_ms: int | None = None
    problems: list[Problem] = field(default_factory=list)


def may_see_all(described: Any) -> bool:
    """Return True if the user of a DescribeCluster answer may see the problems of all servers."""
    operations: int = described.cluster_authorized_operations
    return operations >= 0 and operations & _DESCRIBE_BITS == _DESCRIBE_BITS


class ClusterWatch:
    """The reports of all servers; shared by all threads."""

    def __init__(self, files: tuple[str, str, str]) -> None:
        """`files`: certificate, key and CA for the admin plane; empty: it is not encrypted."""
        certificate, key, ca = files
        self._files = None
        if certificate:
            self._files = TlsFiles(certificate=Path(certificate), key=Path(key), ca=Path(ca))
        self._lock = threading.Lock()
        self._at_s = -ANSWER_SECONDS
        self._reports: dict[int, Report] = {}
        self._addresses: dict[int, Address] = {}

    def reports(self, question: Question, servers: Iterable[int]) -> dict[int, Report]:
        """Return recent reports. While a thread asks for them, others wait for its answer until
        their deadline."""
        if not self._lock.acquire(timeout=question.left_s()):
            question.check()
            return {}
        try:
            if time.monotonic() - self._at_s >= ANSWER_SECONDS:
                self._reports = {one: self._report(question, one) for one in servers}
                self._at_s = time.monotonic()
            return dict(self._reports)
        finally:
            self._lock.release()

    def _report(self, question: Question, server: int) -> Report:
        found, reason = self._ask(question, server, lambda client: client.status([_CATALOG]))
        if found is None:
            return Report(server, reason)
        problems = list(map(Problem.parse, found.problems))
        return Report(server, "", found.version, found.uptime_ms, problems)

    def fill(
        self, question: Question, facts: ServerFacts, *, topic: str, group: str
    ) -> ServerFacts:
        """Add a server's status and events, or the reason why there are none; events of partitions
        and groups are those of one, or of all if empty. Groups of partitions are left out."""

        def ask(client: AdminClient) -> ServerFacts:
            facts.status = client.status(_OWN_GROUPS)
            try:
                facts.events = client.events(topic=topic, group=group)
            except AdminError as error:
                facts.lacks_events = error.details or error.code
            return facts

        _, facts.unreachable = self._ask(question, facts.id, ask)
        return facts

    def _ask(
        self, question: Question, server: int, ask: Callable[[AdminClient], _Found]
    ) -> tuple[_Found | None, str]:
        """Return what `ask` returns of a server's admin plane, or None and the reason."""
        from rpc.admin_client import AdminClient  # gRPC takes a while to load

        address = None
        try:
            address = self._addresses.get(server)
            if address is None:
                address = self._addresses[server] = _admin_address(question, server)
            seconds = min(ADMIN_SECONDS, question.left_s())
            if question.dead.has(address):
                return None, "did not answer a moment ago"
            with AdminClient(address, files=self._files, timeout_s=seconds) as client:
                return ask(client), ""
        except Unreachable as error:
            return None, error.reason
        except TlsFailed as error:
            return None, str(error)
        except AdminError as error:
            self._addresses.pop(server, None)  # the server may come back at another one
            if address is not None and error.code == "DEADLINE_EXCEEDED":
                question.dead.add(address)
            return None, f"admin service: {error.details or error.code}"


def _admin_address(question: Question, server: int) -> Address:
    """Return the address of a server's admin plane, as it says. Raises Unreachable."""
    own = DescribeConfigsResource(_BROKER, str(server), [ADMIN_SETTING])
    answer = question.ask_server(server, DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[own]))
    for result in answer.results:
        for config in result.configs:
            name, _, address = (config.value or "").partition("://")
            if name == ADMIN_LISTENER:
                try:
                    found = parse_address(address)
                except ValueError:
                    break
                return found.host, found.port
    raise Unreachable(f"server {server}", "has no admin service")


def own_problems(local: Address) -> list[Problem]:
    """Return the problems that /health says to everyone; none if it does not answer."""
    connection = http.client.HTTPConnection(*local, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", "/health", headers={"Host": "localhost"})
        facts = json.loads(connection.getresponse().read(_HEALTH_BYTES_MAX))
        return [Problem(one["kind"], one["text"]) for one in facts["problems"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
    finally:
        connection.close()


def problem_rows(
    problems: Iterable[tuple[int, Problem]], topics: Container[str] | None
) -> list[dict[str, Any]]:
    """Return the `problems` of API.md, the wrong ones first. Problems of a server are rows of their
    own; those of the cluster are one row a kind, without repetitions.

    `topics`: those whose names may be shown; None: all."""
    texts: dict[tuple[str, int | None], dict[str, None]] = {}
    hidden: dict[tuple[str, int | None], int] = {}
    for server, problem in problems:
        key = problem.kind, server if problem.kind in SERVER_KINDS else None
        of_kind = texts.setdefault(key, {})
        if topics is not None and not is_visible(problem, topics):
            hidden[key] = hidden.get(key, 0) + 1
        else:
            of_kind[problem.text] = None
    rows = []
    for (kind, of_server), of_kind in texts.items():
        shown = list(of_kind)[:TEXTS_MAX]
        more = len(of_kind) - len(shown) + hidden.get((kind, of_server), 0)
        if more:
            shown.append(f"and {more} more")
        rows.append(
            {
                "kind": kind,
                "texts": shown,
                "meaning": {**SERVER_KINDS, **CLUSTER_KINDS}.get(kind, ""),
                "runbook": RUNBOOK + kind,
                "is_wrong": kind not in NOT_WRONG,
                "server": of_server,
            }
        )
    return sorted(rows, key=lambda row: (not row["is_wrong"], row["server"] is None, row["kind"]))


def is_visible(problem: Problem, topics: Container[str]) -> bool:
    """Return True unless the problem names a partition of another topic."""
    found = _PARTITION.search(f"{problem.text} ")
    return found is None or found[1] in topics


def led_elsewhere(
    problems: list[tuple[int, Problem]], leaders: Container[str]
) -> list[tuple[int, Problem]]:
    """Return the problems without partitions that an isolated server knows no leader of, though
    others do."""
    return [
        (server, problem)
        for server, problem in problems
        if not (problem.kind == "no_leader" and problem.text.removesuffix(NO_LEADER) in leaders)
    ]
