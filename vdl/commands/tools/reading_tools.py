"""Tools that change nothing: one for each reading command of `vdl`, with its `--json` document."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from mcp.server.mcpserver.exceptions import ToolError

from vdl.commands.tools.bounded_answer import answer
from vdl.commands.tools.command_runner import CommandRunner, Ran

RECORDS_MAX = 100
STALL_SECONDS = 15
"""Longest wait for the next record."""
Kind = Literal["topic", "broker", "group"]


def document_of(ran: Ran) -> dict[str, Any]:
    """Return the document that a command printed, and its complaint if it has one. Raises
    ToolError if there is no document."""
    try:
        found = json.loads(ran.output)
    except ValueError:
        raise ToolError(answer({"error": complaint(ran)})) from None
    document = found if isinstance(found, dict) else {"found": found}
    return {**document, "problem": complaint(ran)} if ran.code else document


def complaint(ran: Ran) -> str:
    """Return why a command ended as it did."""
    return ran.ended or ran.error.strip() or f"exit code {ran.code}"


class ReadingTools:
    """The tools; each method is one, its docstring the description."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner

    def all(self) -> list[Callable[..., str]]:
        """Return the tools."""
        return [
            self.cluster_status, self.doctor, self.topics_list, self.topics_describe,
            self.groups_list, self.groups_describe, self.groups_lag, self.config_get,
            self.config_explain, self.records_read,
        ]  # fmt: skip

    def cluster_status(self) -> str:
        """Show servers, problems, partitions, leaders, offsets and the lag of each replica of a VDL
        cluster. `problem` is there while anything is wrong."""
        return self._document("status", "--json", has_extra=False)

    def doctor(self) -> str:
        """Check the cluster: each finding has a verdict (ok, skip, warn, fail) and a next step."""
        return self._document("doctor", "--json")

    def topics_list(self, names: list[str] | None = None, internal: bool = False) -> str:
        """List topics with their numbers of partitions and replicas. Names may be globs."""
        options = ["--internal"] if internal else []
        return self._document("topic", "list", "--json", *options, names=names or [])

    def topics_describe(self, names: list[str]) -> str:
        """Show leaders, replicas, offsets and bytes of each partition, and the settings that differ
        from the default. Names may be globs."""
        return self._document("topic", "describe", "--json", names=names)

    def groups_list(self, names: list[str] | None = None) -> str:
        """List groups of consumers with type and state. Names may be globs."""
        return self._document("group", "list", "--json", names=names or [])

    def groups_describe(self, names: list[str]) -> str:
        """Show members of groups and their partitions. Names may be globs."""
        return self._document("group", "describe", "--json", names=names)

    def groups_lag(self, names: list[str] | None = None) -> str:
        """Show the lag of groups, in records and seconds, with partitions. Names may be globs."""
        return self._document("group", "lag", "--json", names=names or [])

    def config_get(self, kind: Kind, name: str, keys: list[str] | None = None) -> str:
        """Show settings of a topic, a broker (an id, or `all`) or a group: those that differ from
        the default, or the keys that are named."""
        return self._document("config", "get", "--json", names=[kind, name, *(keys or [])])

    def config_explain(self, key: str) -> str:
        """Show meaning, type, default, range and source of a setting."""
        return self._document("config", "explain", "--json", names=[key])

    def records_read(
        self,
        topic: str,
        start: str = "-10",
        until: str = "",
        count: int = 10,
        partition: int | None = None,
        grep: str = "",
        filter: str = "",  # noqa: A002 - as the command's option
    ) -> str:
        """Read some records without a group: nothing is committed.

        `start` and `until` (exclusive): start, end, an offset, -N (N before the end of each
        partition), @MILLISECONDS since 1970, an ISO time, or such as "15m ago". `grep`: an RE2
        pattern in key or value. `filter`: JMESPath, such as "value.user == 'x'". At most 100
        records are read.
        """
        if not 1 <= count <= RECORDS_MAX:
            raise ToolError(f"count is 1 to {RECORDS_MAX}")
        options = [f"--from={start}", f"--count={count}", f"--timeout={STALL_SECONDS}"]
        options += [f"--until={until}"] if until else []
        options += [f"--partition={partition}"] if partition is not None else []
        options += [f"--grep={grep}"] if grep else []
        options += [f"--filter={filter}"] if filter else []
        ran = self._runner.run("consume", "--json", *options, names=[topic])
        lines = ran.output.splitlines(keepends=True)
        whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
        if ran.code and not whole and not ran.ended:
            raise ToolError(answer({"error": complaint(ran)}))
        found: dict[str, Any] = {"records": whole}
        return answer({**found, "problem": complaint(ran)} if ran.code else found)

    def _document(self, *words: str, names: list[str] | None = None, has_extra: bool = True) -> str:
        ran = self._runner.run(*words, names=names or [], has_extra=has_extra)
        return answer(document_of(ran))
