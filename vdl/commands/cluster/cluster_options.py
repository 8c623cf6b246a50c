"""Options of commands that work with any cluster that speaks Kafka's protocol, and its clients.

The clients are confluent-kafka's, over librdkafka. The package is an extra, loaded when a command
runs.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vdl.commands.cluster.client_properties import librdkafka_properties
from vdl.commands.cluster.connection import (
    BOOTSTRAP_SERVERS,
    Connection,
    complete_profile,
    resolve,
    timeout_option,
)
from vdl.commands.cluster.profiles import is_secret
from vdl.commands.output import fail, say
from vdl.kafka.security.client_settings import ClientSettingsError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

_GRACE_SECONDS = 0.5
"""Time for librdkafka to report that it got no answer in time."""
_PROBLEMS_MAX = 8
_ADDRESSES = (BOOTSTRAP_SERVERS, "metadata.broker.list")
_EXTRA = "this command needs confluent-kafka: pip install 'vdl-log[cli]'"

_Function = Callable[..., Any]
Result = TypeVar("Result")


@dataclass(slots=True)
class Outage:
    """The time in which no server of a cluster answers a client of librdkafka."""

    reason: str = ""
    """Why none answers; empty while one does."""
    is_told: bool = False
    """True to say on standard error that an outage begins: for commands that wait it out."""

    def begin(self, reason: str) -> None:
        """Note that all connections are lost."""
        if not self.reason and self.is_told:
            say(f"vdl: no server answers, waiting: {reason}", err=True)
        self.reason = reason

    def end(self) -> None:
        """Note that a server has answered."""
        self.reason = ""


@dataclass(slots=True)
class Cluster:
    """A cluster as the options name it. Nothing is connected before a client is asked for."""

    connection: Connection
    extra: dict[str, str] = field(default_factory=dict)
    outage: Outage = field(default_factory=Outage)
    _admin: AdminClient | None = None
    _problems: deque[str] = field(default_factory=lambda: deque(maxlen=_PROBLEMS_MAX))

    def properties(self) -> dict[str, str]:
        """Return the properties for confluent-kafka. Raises click.UsageError."""
        where = self.connection
        try:
            found = librdkafka_properties(where.properties, where.source, where.folder)
        except ClientSettingsError as error:
            raise click.UsageError(str(error)) from None
        return {"client.id": "vdl", **found, BOOTSTRAP_SERVERS: where.bootstrap} | self.extra

    @property
    def timeout_seconds(self) -> float:
        """Longest wait for one answer of a server."""
        return self.connection.timeout_seconds

    @property
    def result_seconds(self) -> float:
        """Longest wait for the result of an admin request, which has a time-out of its own."""
        return self.timeout_seconds + _GRACE_SECONDS

    @property
    def no_answer(self) -> str:
        """Words for a request without an answer."""
        return f"no answer within {self.timeout_seconds:g} s"

    def admin(self) -> AdminClient:
        """Return the admin client; the same one each time. Raises click.ClickException, also if no
        server answers."""
        if self._admin is None:
            self._admin = self._client("admin", "AdminClient", {})
            self._reach(self._admin)
        return self._admin

    def consumer(self, **more: Any) -> Consumer:
        """Return a new consumer, with more properties: `consumer(**{"group.id": "g"})`."""
        consumer: Consumer = self._client("", "Consumer", more)
        return consumer

    def producer(self, **more: Any) -> Producer:
        """Return a new producer, with more properties."""
        producer: Producer = self._client("", "Producer", more, made_by=_producer_class())
        return producer

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        """Return brokers and topics; of one topic alone if it is named. Raises
        click.ClickException."""
        admin = self.admin()
        try:
            return admin.list_topics(topic, timeout=self.timeout_seconds)
        except kafka_exception() as error:
            fail(self.words(error))

    def result(self, future: Future[Result], about: str = "") -> Result:
        """Return the result of an admin request. Raises click.ClickException, with `about` before
        the reason."""
        about = about and f"{about}: "
        try:
            return future.result(self.result_seconds)
        except kafka_exception() as error:
            fail(about + self.words(error))
        except TimeoutError:
            fail(f"{about or self.connection.bootstrap + ': '}{self.no_answer}")

    def words(self, error: BaseException) -> str:
        """Return an error as one line: its name in the protocol, and what is known of it."""
        if isinstance(error, kafka_exception()) and error.args:
            found = error.args[0]
            name, text = found.name(), found.str()
            if name.startswith("_") and self._problems:
                text = self._problems[-1]
            elif name == "_TIMED_OUT":
                return self.no_answer
            return f"{name.lstrip('_')}: {text}"
        return str(error)

    def _client(
        self, module: str, name: str, more: dict[str, Any], *, made_by: type | None = None
    ) -> Any:
        """Return a client of confluent-kafka. Raises click.ClickException."""
        package = confluent_kafka()
        if module:
            import confluent_kafka.admin as package
        settings: dict[str, Any] = {
            # The command reports errors, once, and not the library's log.
            "log_level": 0,
            "error_cb": self._note,
            **self.properties(),
            **more,
        }
        try:
            return (made_by or getattr(package, name))(settings)
        except kafka_exception() as error:
            raise click.UsageError(error.args[0].str()) from None

    def _note(self, error: KafkaError) -> None:
        # "All brokers down" follows the reasons and says less than they do.
        if error.name() != "_ALL_BROKERS_DOWN":
            self._problems.append(error.str())
        elif not self._problems:
            protocol = self.properties().get("security.protocol", "plaintext").upper()
            self._problems.append(f"no answer; check that the listener speaks {protocol}")
        if error.name() == "_ALL_BROKERS_DOWN":
            self.outage.begin(self._problems[-1])

    def _reach(self, admin: AdminClient) -> None:
        """Wait until a server answers. Raises click.ClickException, early if none is there."""
        ends = time.monotonic() + self.timeout_seconds
        while (left := ends - time.monotonic()) > 0:
            try:
                admin.describe_cluster(request_timeout=min(1.0, left)).result()
            except kafka_exception() as error:
                admin.poll(0)
                if self._problems or error.args[0].name() not in ("_TRANSPORT", "_TIMED_OUT"):
                    break
            else:
                return
        told = self._problems[-1] if self._problems else self.no_answer
        fail(f"{self.connection.bootstrap}: {told}")


def confluent_kafka() -> Any:
    """Return the package. Raises ModuleNotFoundError, which `cluster_options` tells in words."""
    import confluent_kafka as package

    return package


@functools.cache
def _producer_class() -> type[Producer]:
    """Return the class of producers that a signal may interrupt.

    confluent-kafka 2.16 loses a KeyboardInterrupt that a signal raises while a delivery callback
    runs, and raises SystemError in its place.
    """
    package = confluent_kafka()

    class Interruptible(package.Producer):  # type: ignore[misc, name-defined]  # imported late
        def poll(self, timeout: float = -1) -> int:
            try:
                return int(super().poll(timeout))
            except SystemError:
                raise KeyboardInterrupt from None

        def flush(self, timeout: float = -1) -> int:
            try:
                return int(super().flush(timeout))
            except SystemError:
                raise KeyboardInterrupt from None

    return Interruptible


def kafka_exception() -> type[Exception]:
    """Return the exception that confluent-kafka raises."""
    found = confluent_kafka().KafkaException
    assert issubclass(found, Exception), found
    return found  # type: ignore[no-any-return]  # of a package without annotations


def _extra(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    del ctx, option
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.strip()
        if not separator or not name:
            # The text is not shown: it may be a password.
            raise click.BadParameter("expected KEY=VALUE")
        if is_secret(name):
            # Arguments are seen by every user of the machine, and kept by the shell.
            raise click.BadParameter(
                f"{name} is no argument: write it to a file for --config, or keep it in a profile"
                " (vdl profile create --password-stdin)"
            )
        if name in _ADDRESSES:
            # Otherwise a profile's login would go to addresses that are not the profile's.
            raise click.BadParameter(f"{name}: use --bootstrap")
        found[name] = value.strip()
    return found


def cluster_options(function: _Function) -> _Function:
    """Add `--profile`, `--bootstrap`, `--config`, `-X` and `--timeout`.

    The command gets `cluster: Cluster`.
    """

    @click.option("--profile", metavar="NAME", shell_complete=complete_profile,
                  help="A profile of `vdl profile`; the current one.")  # fmt: skip
    @click.option("--bootstrap", metavar="HOST:PORT,...",
                  help="Kafka addresses of some servers; 127.0.0.1:9092.")  # fmt: skip
    @click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
                  help="Client properties, of Java clients or librdkafka's.")  # fmt: skip
    @click.option("-X", "extra", multiple=True, metavar="KEY=VALUE", callback=_extra,
                  help="A property of librdkafka; may be repeated.")  # fmt: skip
    @timeout_option
    @functools.wraps(function)
    def command(
        *arguments: Any,
        profile: str | None,
        bootstrap: str | None,
        config: Path | None,
        extra: dict[str, str],
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        connection = resolve(profile=profile, bootstrap=bootstrap, config=config, timeout=timeout)
        try:
            return function(*arguments, cluster=Cluster(connection, extra), **more)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "confluent_kafka":
                raise
            fail(_EXTRA)

    return command
