"""Tools that change a cluster, for `vdl mcp --allow-changes`.

Each shows a plan first, as the commands do: a call without `execute` changes nothing, and one with
it is refused unless the same plan was shown within PLAN_SECONDS. No pattern is taken: what changes
is named in full.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from mcp.server.mcpserver.exceptions import ToolError

from vdl.commands.tools.bounded_answer import answer
from vdl.commands.tools.command_runner import CommandRunner
from vdl.commands.tools.reading_tools import Kind, complaint, document_of

PLANS_MAX = 64
PLAN_SECONDS = 600.0
RECORDS_MAX = 100
RECORD_BYTES_MAX = 256 << 10
"""All records of one call."""
Target = Literal["earliest", "latest", "offset", "datetime", "duration", "shift"]
_TARGETS = {
    "earliest": "--to-earliest",
    "latest": "--to-latest",
    "offset": "--to-offset",
    "datetime": "--to-datetime",
    "duration": "--by-duration",
    "shift": "--shift-by",
}


class ChangingTools:
    """The tools; each method is one, its docstring the description."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self._plans: dict[str, float] = {}
        """When a plan was shown, by the call; the oldest first."""
        self._lock = threading.Lock()

    def all(self) -> list[Callable[..., str]]:
        """Return the tools."""
        return [
            self.topic_create, self.topic_alter, self.topic_delete, self.config_set,
            self.group_reset, self.records_write,
        ]  # fmt: skip

    def topic_create(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: dict[str, str] | None = None,
        execute: bool = False,
    ) -> str:
        """Create a topic. Without `execute` the cluster only says whether it could."""
        options = [f"--set={key}={value}" for key, value in (configs or {}).items()]
        options += [f"--partitions={partitions}"] if partitions is not None else []
        if replication_factor is not None:
            options.append(f"--replication-factor={replication_factor}")
        return self._change(["topic", "create", *options], [name], execute, plan="--validate-only")

    def topic_alter(
        self,
        name: str,
        configs: dict[str, str] | None = None,
        unset: list[str] | None = None,
        partitions: int | None = None,
        execute: bool = False,
    ) -> str:
        """Change settings of a topic and its number of partitions, which can only grow. Without
        `execute` the plan is shown."""
        options = [f"--set={key}={value}" for key, value in (configs or {}).items()]
        options += [f"--unset={key}" for key in unset or []]
        options += [f"--partitions={partitions}"] if partitions is not None else []
        return self._change(["topic", "alter", *options], [_full(name)], execute, done="--yes")

    def topic_delete(self, name: str, execute: bool = False) -> str:
        """Delete a topic with all its records. Without `execute` it is shown what would be lost."""
        return self._change(["topic", "delete"], [_full(name)], execute, done="--yes")

    def config_set(
        self, kind: Kind, name: str, configs: dict[str, str], execute: bool = False
    ) -> str:
        """Set settings of a topic, a broker (an id, or `all`) or a group. Without `execute` the
        cluster only says whether it could."""
        words = [kind, name, *(f"{key}={value}" for key, value in configs.items())]
        return self._change(["config", "set"], words, execute, plan="--validate-only")

    def group_reset(
        self,
        group: str,
        target: Target,
        value: str = "",
        topics: list[str] | None = None,
        execute: bool = False,
    ) -> str:
        """Set the offsets of a group without members. `topics`: such as "orders" or "orders:0,1";
        empty for all that it has offsets of. `value`: an offset, an ISO time, a period such as
        "2h", or a number of records to shift by. Without `execute` the new offsets are shown."""
        is_bare = target in ("earliest", "latest")
        if is_bare is bool(value):
            raise ToolError(f"{target} needs {'no' if is_bare else 'a'} value")
        options = [f"--topic={one}" for one in topics or []] or ["--all-topics"]
        options.append(_TARGETS[target] if is_bare else f"{_TARGETS[target]}={value}")
        return self._change(["group", "reset", *options], [group], execute, done="--execute")

    def records_write(
        self, topic: str, records: list[dict[str, Any]], execute: bool = False
    ) -> str:
        """Write records: objects with `value`, and `key`, `headers` ({name: value}), `partition`.
        Without `execute` it is only looked whether the topic is there."""
        if not 1 <= len(records) <= RECORDS_MAX:
            raise ToolError(f"1 to {RECORDS_MAX} records are written by one call")
        data = "".join(f"{json.dumps(one)}\n" for one in records).encode()
        if len(data) > RECORD_BYTES_MAX:
            raise ToolError(f"the records of one call have {RECORD_BYTES_MAX >> 10} KiB at most")
        call = json.dumps(["records_write", topic, records])
        plan = {"topic": topic, "records": len(records), "bytes": len(data)}
        if not execute:
            found = self._runner.run("topic", "list", "--json", names=[_full(topic)])
            document_of(found)
            self._planned(call)
            return answer({"executed": False, **plan})
        self._check_planned(call)
        ran = self._runner.run("produce", "--json-lines", names=[topic], data=data)
        if ran.code or ran.ended:
            raise ToolError(answer({"error": complaint(ran)}))
        return answer({"executed": True, **plan, "report": ran.error.strip()})

    def _change(
        self, words: list[str], names: list[str], execute: bool, *, plan: str = "", done: str = ""
    ) -> str:
        """Show a plan, or carry out one that was shown. `plan`, `done`: options of the command for
        the first and the second."""
        call = json.dumps([words, names])
        if execute:
            self._check_planned(call)
        option = done if execute else plan
        ran = self._runner.run(*words, "--json", *([option] if option else []), names=names)
        document = document_of(ran)
        if not execute and not ran.code:
            self._planned(call)
        return answer({**document, "executed": execute})

    def _planned(self, call: str) -> None:
        with self._lock:
            self._plans.pop(call, None)
            while len(self._plans) >= PLANS_MAX:
                del self._plans[next(iter(self._plans))]
            self._plans[call] = time.monotonic()

    def _check_planned(self, call: str) -> None:
        """Take a plan. Raises ToolError unless it was shown lately; one that is taken is shown
        again before it is repeated."""
        with self._lock:
            shown = self._plans.pop(call, None)
        if shown is None or time.monotonic() - shown > PLAN_SECONDS:
            raise ToolError(
                "call it without `execute` first, with the same arguments, for the plan"
            )


def _full(name: str) -> str:
    """Return the name of one topic. Raises ToolError for a glob of the commands."""
    if set("*?[").intersection(name):
        raise ToolError("a pattern is not taken here: name one topic in full")
    return name
