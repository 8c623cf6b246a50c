"""The command line as one click application.

Each command's module is loaded only when it runs: `vdl down` need not load the modules of
`vdl status`.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from vdl import __version__
from vdl.commands.interrupts import PIPE_ENDED
from vdl.commands.terminal_text import visible_text

COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("vdl.commands.up", "up", "Start a replica set on this machine."),
    "down": ("vdl.commands.up", "down", "Stop a replica set on this machine."),
    "status": ("vdl.commands.status", "status", "Show servers, topics, leaders, offsets and lag."),
    "trace": ("vdl.commands.trace", "trace", "Show slow requests, and where their time went."),
    "explain": (
        "vdl.commands.explain",
        "explain",
        "Say why something is as it is, and what to do.",
    ),
    "member": ("vdl.commands.member", "member", "Show, add and remove servers of a cluster."),
    "balance": (
        "vdl.commands.balance",
        "balance",
        "Spread replicas and leaderships over servers, hosts and disks.",
    ),
    "plan": ("vdl.commands.plan", "plan", "Show what a change would do, step by step."),
    "serve": ("", "", "Run one server."),
    "cert": ("vdl.commands.cert", "cert", "Make and revoke the certificates of a replica set."),
    "acl": ("vdl.commands.acl", "acl", "Manage access control lists."),
    "quota": ("vdl.commands.quota", "quota", "Manage client quotas."),
    "token": ("vdl.commands.token", "token", "Manage delegation tokens."),
    "user": ("vdl.commands.user", "user", "Manage users and their passwords."),
    "produce": ("vdl.commands.produce", "produce", "Write records to a topic."),
    "consume": ("vdl.commands.consume", "consume", "Print the records of topics."),
    "bench": ("vdl.commands.bench", "bench", "Measure throughput and latency of a cluster."),
    "doctor": ("vdl.commands.doctor", "doctor", "Check a cluster, or this machine for a server."),
    "profile": ("vdl.commands.profile", "profile", "Named clusters, and the current one."),
    "topic": ("vdl.commands.topic", "topic", "Manage topics and their records."),
    "group": ("vdl.commands.group", "group", "Show groups and their lag; reset their offsets."),
    "config": (
        "vdl.commands.config",
        "config",
        "Show and change settings of topics, brokers and groups.",
    ),
    "mcp": ("vdl.commands.mcp", "mcp", "Serve tools for assistants (Model Context Protocol)."),
    "sim": ("vdl.commands.sim", "sim", "Simulate whole clusters on virtual time from a seed."),
    "log": ("vdl.commands.log", "log", "Inspect data directories offline: dump, verify, index."),
    "recover": (
        "vdl.commands.recover",
        "recover",
        "Go on with one server after the loss of a majority; records may be lost.",
    ),
    "check": ("vdl.commands.check", "check", "Check a recorded history for anomalies."),
    "test-server": (
        "vdl.commands.test_server",
        "test_server",
        "Run servers for tests, which fail on request.",
    ),
    "pipeline": (
        "vdl.commands.pipeline",
        "pipeline",
        "Write topics to tables on Spark, exactly once.",
    ),
    "version": ("vdl.commands.app", "version", "Print versions."),
}
"""Name → (module, attribute, one line). `serve` never comes here (see vdl.cli), but is listed."""


_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


class PipeEnded(Exception):
    """The reader of the output ended first."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module, attribute, _ = COMMANDS.get(cmd_name, ("", "", ""))
        if not module:
            return None
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument. Raises click.UsageError with names like it:
        click looks only among commands that are loaded."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = " or ".join(map(repr, get_close_matches(name, COMMANDS)))
            hint = f" Did you mean {near}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Raises PipeEnded; for a BrokenPipeError click would end the process."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeEnded from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vdl")
def app() -> None:
    """VDL, a replicated log store that speaks the Kafka protocol."""


@click.command()
def version() -> None:
    """Print the version of VDL, of Python and of the libraries that matter."""
    from importlib.metadata import version as distribution_version

    click.echo(f"vdl {__version__}")
    click.echo(f"python {sys.version.split()[0]}")
    for library in ("crc32c", "cramjam", "grpcio", "lmdb", "msgspec", "protobuf"):
        click.echo(f"{library} {distribution_version(library)}")


def _told_in_words() -> tuple[type[Exception], ...]:
    """Return the exceptions of commands that are shown without a traceback. Their modules take a
    while to load, so they are imported only after an error."""
    from vdl.commands.servers.replica_set import ReplicaSetError
    from vdl.config.settings import ConfigError

    return ReplicaSetError, ConfigError


def run_app(arguments: Sequence[str]) -> int:
    """Run the application. Return the exit code: 0, 1 for a failure, 2 for wrong usage, PIPE_ENDED
    if the reader of the output ended first."""
    try:
        code = app.main(
            args=list(arguments),
            prog_name="vdl",
            standalone_mode=False,
            color=False if os.environ.get("NO_COLOR") else None,
        )
    except click.ClickException as error:
        # The text may be of a server, a record or a library that quotes one.
        error.message = visible_text(error.message)  # type: ignore[misc]  # only for `show`
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except PipeEnded:
        _give_up_output()
        return PIPE_ENDED
    except OSError as error:
        # Commands report errors of the files that they name.
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        _give_up_output()
        click.echo(f"Error: cannot write the output: {error.strerror}", err=True)
        return 1
    except Exception as error:
        if not isinstance(error, _told_in_words()):
            raise
        click.echo(visible_text(f"vdl: {error}"), err=True)
        return 1
    return code if isinstance(code, int) else 0


def _give_up_output() -> None:
    """Have nothing written at exit: it would fail again, with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
