"""A server as a process: event loop, signals, ports, real disk and network.

The only place where a `Server` meets asyncio, besides the listener and the peer transport. SIGTERM
stops one server: its leaderships are handed over first. SIGINT (^C, which a terminal sends to all
servers it started) stops without that, because the whole set stops.

An exception on the loop, or a disk that cannot be trusted, ends the process at once. No
acknowledged record is lost, and a restart reads the disk again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ids import ServerId
from rpc.errors import TlsFailed
from rpc.hello import Hello
from rpc.links import Links
from rpc.streams import Address, Dial, DialFailed, PeerHandler, Stream
from rpc.tls_context import LinkEncryption
from rpc.tls_stream import LinkSecurity
from rpc.transport import SocketTransport
from segments.api import DataMissing, ForeignDirectory, ForeignFile, StorageError
from segments.io.ring import open_ring
from segments.io.workers import ThreadWorkers
from segments.store import DiskStore
from vdl import __version__
from vdl.config.console import OFF
from vdl.config.exposure import NO_AUTHORIZER, lacks_authorizer
from vdl.config.settings import Config, ConfigError
from vdl.config.values import ADMIN_LISTENER
from vdl.events import Events
from vdl.kafka.api import load as load_apis
from vdl.kafka.connections.listener import Listener
from vdl.kafka.security.audit import AuditLog
from vdl.kafka.security.oauth import Validator
from vdl.listening import listening_socket
from vdl.log import EventLog, Loggers, start_logging
from vdl.records.walk import IS_NATIVE
from vdl.server.administration import Administration
from vdl.server.audit_file import AuditFile
from vdl.server.delegation_key import read_delegation_keys
from vdl.server.diagnosis import problems_of
from vdl.server.exposition import Numbers, Source
from vdl.server.first_users import read_first_users
from vdl.server.http import HttpServer
from vdl.server.loop import Doorbell, TurnLoop
from vdl.server.machine import Machine
from vdl.server.metrics import Health, exposition_of, operations_routes
from vdl.server.offline_users import take_added_users
from vdl.server.otlp import OtlpExport
from vdl.server.problem import NOT_WRONG
from vdl.server.recovery_progress import RecoveryProgress
from vdl.server.secret_files import readable_by_others
from vdl.server.server import Server, ServerState
from vdl.server.server_tls import Refreshed, ServerTls
from vdl.server.side_thread import SideThread
from vdl.server.sources import ServerSources

if TYPE_CHECKING:
    from rpc.admin_service import AdminService
    from vdl.console.gateway import Gateway

EXIT_OK = 0
EXIT_FAILED = 1
_STANDARD_ERROR = 2

_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_STRAYS_TOLD = 20
_LOAD_AFTER_SECONDS = 3
"""Delay after a server began to serve: a start is busy, and others may start beside it."""
_CERTIFICATES_SECONDS = 1.0
"""Interval of checks of the certificate files."""
_WARNING_SECONDS = 60
"""Least time between two log events of the same kind, such as missing descriptors."""
GC_THRESHOLDS = (2_000, 5, 1_000_000)
"""Young objects are collected often, which costs little; old ones rarely. A server keeps hundreds
of thousands of cache entries: a full collection stops it for a tenth of a second and finds nothing,
because the path of a record creates no cycles."""
GC_FULL_SECONDS = 600


class NoDialer:
    """Dialler of a single server, which has no peers."""

    def dial(self, address: Address, on_result: Callable[[Stream | DialFailed], None]) -> Dial:
        raise AssertionError(f"no peers are configured, but {address} is dialled")


class Process:
    """One running server and its ports."""

    def __init__(
        self,
        config: Config,
        loop: TurnLoop,
        on_open: Callable[[], None],
        machine: Machine | None = None,
    ) -> None:
        """`on_open`: called once the process owns the data directory. May raise OSError.

        `machine`: None for the operating system.
        """
        self._machine = machine or Machine()
        self._config = config
        self._on_open = on_open
        self._loop = loop
        self._logger = start_logging(config.log)
        self._clock = self._machine.clock(loop)
        self._events = Events(self._clock.wall_ms)
        self._log = EventLog(self._logger, self._events)
        # The generator spreads timers; identities are drawn from the system.
        self._rng = random.Random(int.from_bytes(os.urandom(32)))
        self._ended: asyncio.Future[int] = loop.create_future()
        self._listeners: list[Listener] = []
        self._http: HttpServer | None = None
        self._console: Gateway | None = None
        self._doorbell = Doorbell(loop)
        self._handshakes = SideThread("tls", self._doorbell.ring)
        self._link_handshakes = SideThread("peer-tls", self._doorbell.ring)
        """Separate from that of clients: their handshakes must not delay links between servers."""
        self._logins = SideThread("login", self._doorbell.ring)
        self._patterns = SideThread("patterns", self._doorbell.ring)
        self._tls = ServerTls(config)
        self._link_security: LinkSecurity | None = None
        self._admin: AdminService | None = None
        self._export: OtlpExport | None = None
        self._audit_file: AuditFile | None = None
        self._audit: AuditLog | None = None
        self._next_warning = 0.0
        self._next_refusal_warning = 0.0

    async def run(self) -> int:
        """Serve until stopped. Return the exit code."""
        self._loop.set_exception_handler(self._loop_failed)
        try:
            await self._start()
        except DataMissing as error:
            self._log.error("data_missing", path=error.path, error=str(error))
            return EXIT_FAILED
        except ForeignFile as error:
            self._log.error("foreign_file", path=error.path, error=str(error))
            return EXIT_FAILED
        except ForeignDirectory as error:
            self._log.error("foreign_directory", owner=error.owner, error=str(error))
            return EXIT_FAILED
        except (StorageError, TlsFailed, ConfigError, OSError) as error:
            self._log.error("cannot_start", error=f"{type(error).__name__}: {error}")
            return EXIT_FAILED
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._collect_later()
        return await self._ended

    async def _start(self) -> None:
        """Start the server. Raises StorageError, OSError, TlsFailed, ConfigError for an unusable
        directory, port, certificate or list of users."""
        loop = self._loop
        config = self._config
        self._tls.load()
        users = read_first_users(config.first_users) if config.first_users is not None else ()
        tokens = Validator(config.oauth) if config.oauth.is_complete else None
        if tokens is not None:
            from vdl.server.token_keys import TokenKeys  # loads a client of HTTP

            fetching = SideThread("jwks", self._doorbell.ring)
            TokenKeys(tokens, fetching.run, self._clock, self._log).start()
        write_ring = open_ring() if config.io_uring else None
        if write_ring is not None:
            write_ring.on_refused = self._ring_refused
            loop.add_reader(write_ring.fileno(), write_ring.look)
        workers = ThreadWorkers(
            self._doorbell.ring,
            lambda delay_ms, fn: loop.call_later(delay_ms / 1_000, fn),
            write_ring=write_ring,
        )
        recovery = RecoveryProgress(self._log, time.monotonic_ns)
        store = DiskStore.open(
            self._machine.file_system,
            str(config.data_dir),
            workers,
            config.store,
            self._rng,
            server_id=config.server_id,
            now_ns=time.monotonic_ns,
            progress=recovery.told,
        )
        if not IS_NATIVE:
            self._log.warning(
                "records_walked_in_python",
                meaning=(
                    "records are checked in Python, at 2 µs each: the installation had no C "
                    "compiler"
                ),
            )
        if lacks_authorizer(config):
            self._log.warning("no_authorizer", meaning=NO_AUTHORIZER)
        if exposed := readable_by_others(config):
            self._log.warning(
                "secrets_readable_by_others",
                files=", ".join(map(str, exposed)),
                meaning="every user of this machine can read them; run chmod o= on them",
            )
        self._on_open()
        # The process owns the directory from here on.
        added_users = take_added_users(config.data_dir, time.time())
        self._open_audit()
        recovery.ended(
            len(store.logs), journal_writes="thread" if write_ring is None else "io_uring"
        )
        if store.strays:
            self._warn_of_strays(store.strays)
        if config.store.place_bytes_min and not store.writes_in_place:
            self._log.warning(
                "large_appends_not_placed",
                meaning=(
                    "the file system is not known to support overwriting in place, so large "
                    "appends also go through the journal"
                ),
            )
        store.on_fatal = self._disk_failed
        store.on_read_refused = self._read_refused
        self.server = server = Server(
            config,
            store=store,
            clock=self._clock,
            rng=self._rng,
            random_bytes=os.urandom,
            make_links=self._make_links,
            advertised=self._advertised(),
            log=self._log,
            log_of=self._log.part,
            loggers=Loggers(),
            login_compute=self._logins.run,
            pattern_compute=self._patterns.run,
            cpu_ns=time.thread_time_ns,
            first_users=users,
            added_users=added_users,
            delegation_keys=read_delegation_keys(config),
            audit=self._audit,
            tokens=tokens,
        )
        server.lacks_descriptors = self._lacks_descriptors
        server.certificates_ending = self._tls.ending
        server.on_second = self._is_second
        server.on_serving = self._open_listeners
        server.on_closing = self._close_listeners
        for number, transfer in ((signal.SIGTERM, True), (signal.SIGINT, False)):
            loop.add_signal_handler(number, self._stop, transfer)
        await self._open_operations(server, store)
        if config.otlp.endpoint:
            self._export = self._make_export(server, store)
        self._check_ports()
        server.start()
        if self._tls.contexts:
            self._follow_certificates()

    def _follow_certificates(self) -> None:
        """Reload certificate files, which may be replaced at any time."""
        self._handshakes.run(self._tls.refresh, self._followed)

    def _followed(self, result: Refreshed | BaseException) -> None:
        if isinstance(result, BaseException):
            raise result
        if result.loaded:
            self._log.info("certificates_loaded", names=",".join(result.loaded))
            self._drop_revoked()
        for name, problem in result.problems.items():
            self._log.warning("certificates_not_loaded", name=name, problem=problem)
        for name, ends in result.ending_certificates.items():
            self._log.warning("certificate_ends", name=name, ends=f"{ends:%F %R}Z")
        for name, ends in result.ending.items():
            self._log.warning("revocation_list_ends_soon", name=name, ends=f"{ends:%F %R}Z")
        self._loop.call_later(_CERTIFICATES_SECONDS, self._follow_certificates)

    def _drop_revoked(self) -> None:
        """Drop connections whose certificate is now in a revocation list."""
        for listener in self._listeners:
            if listener.tls is not None:
                listener.tls.drop_revoked()
        if self._link_security is not None:
            self._link_security.drop_revoked()

    def _open_audit(self) -> None:
        """Open the audit log. Raises OSError: a server with an audit log does not serve without
        it."""
        options = self._config.audit
        if options.file is None:
            return
        self._audit_file = AuditFile(
            options.file,
            bytes_max=options.bytes_max,
            files_max=options.files_max,
            on_loss=lambda cause: self._log.error("audit_lines_lost", cause=cause),
        )
        self._audit = AuditLog(self._audit_file.write, self._clock, self._audit_file.is_full)

    def _warn_of_strays(self, paths: Sequence[str]) -> None:
        """Log once the names in the data directory that are not the store's. They stay."""
        told = ", ".join(paths[:_STRAYS_TOLD])
        self._log.warning("stray_names", count=len(paths), names=told)

    def _collect_later(self) -> None:
        """Schedule a full collection, at different times on the servers of a set."""
        delay = GC_FULL_SECONDS * self._rng.uniform(0.75, 1.25)
        self._loop.call_later(delay, self._collect)

    def _collect(self) -> None:
        gc.collect()
        self._collect_later()

    # --- ports ---------------------------------------------------------------------------------
    def _check_ports(self) -> None:
        """Raise OSError if a port that is opened later cannot be listened on, before other servers
        and their clients learn of this server."""
        wanted = [(listener.host, listener.port) for listener in self._config.listeners]
        if self._config.admin is not None:
            wanted.append((self._config.admin.listen.host, self._config.admin.listen.port))
        for host, port in wanted:
            listening_socket(host, port, 1).close()

    def _advertised(self) -> dict[str, tuple[str, int]]:
        """Return this server's addresses for the catalog."""
        config = self._config
        told = {
            listener.name: (
                listener.advertised_host or listener.host,
                listener.advertised_port or listener.port,
            )
            for listener in config.listeners
        }
        if config.admin is not None:
            admin = config.admin.advertise
            told[ADMIN_LISTENER] = (admin.host, admin.port)
        return told

    def _make_links(self, local: Hello, handler: PeerHandler) -> Links:
        peer = self._config.peer
        if peer is None:
            return Links(local, NoDialer(), self._clock, self._rng, handler)
        listen = (peer.listen.host, peer.listen.port)
        links = self._config.tls.links
        self._link_security = self._tls.link_security(self._link_handshakes.run)
        if links is not LinkEncryption.REQUIRED:
            self._log.warning("links_not_all_encrypted", links=links.value)
        return SocketTransport(
            local,
            listen,
            handler,
            loop=self._loop,
            rng=self._rng,
            dialer=self._machine.dialer(self._loop),
            on_trouble=self._cannot_dial,
            security=self._link_security,
        )

    def _cannot_dial(self, server_id: ServerId, address: Address, cause: str) -> None:
        host, port = address
        self._log.warning("dial_failed", peer=server_id, address=f"{host}:{port}", cause=cause)

    def _open_listeners(self) -> None:
        """Accept clients."""
        frontend = self.server.frontend
        assert frontend is not None
        for options in self._config.listeners:
            listener = Listener(
                self._loop,
                frontend,
                options,
                self._logger.getChild("kafka"),
                context=self._tls.contexts.get(options.name),
                offload=self._handshakes.run,
            )
            try:
                listener.open()
            except OSError as error:
                self._cannot_listen(options.name, options.port, error)
            listener.start()
            self._listeners.append(listener)
        if self._config.admin is not None:
            self._loop.create_task(self._open_admin())
        load = threading.Thread(target=load_apis, name="load", daemon=True)
        self._loop.call_later(_LOAD_AFTER_SECONDS, load.start)
        self._start_export()

    def _cannot_listen(self, name: str, port: int, error: OSError) -> None:
        self._log.error("cannot_listen", listener=name, port=port, error=str(error))
        end_now(EXIT_FAILED)

    def _close_listeners(self) -> None:
        """Stop listening: new connections are refused."""
        for listener in self._listeners:
            listener.close()

    async def _open_admin(self) -> None:
        """Open the admin service, after the listeners: gRPC takes a while to load, in a thread."""
        # gRPC would write a line to stderr for each failed handshake.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        await asyncio.to_thread(import_module, "rpc.admin_service")
        from rpc.admin_security import AdminSecurity
        from rpc.admin_service import AdminService

        admin = self._config.admin
        assert admin is not None
        security = (
            AdminSecurity(self._config.tls, self._tls.revocations)
            if self._config.tls.secures_links
            else None
        )
        self._admin = AdminService(Administration(self.server, self._events), security=security)
        try:
            await self._admin.start((admin.listen.host, admin.listen.port))
        except OSError as error:
            self._cannot_listen(ADMIN_LISTENER, admin.listen.port, error)

    async def _open_operations(self, server: Server, store: DiskStore) -> None:
        http = self._config.http
        if http is None:
            return
        routes = operations_routes(self._sources(server, store), lambda: _health(server))
        if self._config.console.mode != OFF:
            self._console = self._open_console(server)
        hand_over = None if self._console is None else self._console.hand_over
        self._http = HttpServer(routes, self._log, hand_over)
        await self._http.start(http.host, http.port)

    def _open_console(self, server: Server) -> Gateway:
        """Return the server's side of its console. Imported here: most servers have none."""
        from vdl.console.gateway import Gateway
        from vdl.console.samples import Samples
        from vdl.console.settings import console_settings

        settings = console_settings(self._config).as_json()
        gateway = Gateway(settings, Samples(server), self._clock, self._loop, self._log)
        gateway.start()
        return gateway

    def _sources(self, server: Server, store: DiskStore) -> tuple[Source, ...]:
        """Return the sources of the metrics, with a memory of their own."""
        sources = ServerSources(
            server,
            store,
            self._config.metrics,
            lambda: (one.tls for one in self._listeners if one.tls is not None),
        )
        return (*sources.all(), Source("otlp", self._export_numbers))

    def _export_numbers(self) -> Numbers:
        return {} if self._export is None else self._export.stats.numbers()

    def _make_export(self, server: Server, store: DiskStore) -> OtlpExport:
        """Return the export to OpenTelemetry, which starts once clients are served. Its sources are
        not those of the scrapes: a page in the making would be disturbed."""
        config = self._config
        exposition = exposition_of(self._sources(server, store))
        return OtlpExport(
            config.otlp,
            collect=partial(exposition.collect, with_old_names=False),
            compute=SideThread("otlp", self._doorbell.ring).run,
            clock=self._clock,
            log=self._log,
        )

    def _start_export(self) -> None:
        """Begin to send metrics and slow requests, if that is configured."""
        host, frontend = self.server.host, self.server.frontend
        if self._export is None or host is None or frontend is None:
            return
        self._export.start(
            {
                "service.name": "vdl",
                "service.version": __version__,
                "service.instance.id": str(self._config.server_id),
                "vdl.cluster.id": host.cluster_id,
            }
        )
        if self._config.otlp.traces:
            frontend.stats.slow.on_slow = self._export.note

    # --- ends ------------------------------------------------------------------------------------
    def _stop(self, transfer: bool) -> None:
        if self.server.state in (ServerState.STOPPING, ServerState.STOPPED):
            return
        self._log.info("stopping", transfer=transfer)
        self._loop.call_later(stop_seconds_max(self._config), self._stop_timed_out)
        self.server.stop(self._stopped, transfer=transfer)

    def _stopped(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._console is not None:
            self._console.close()
        if self._audit is not None and self._audit_file is not None:
            self._audit.close()
            self._audit_file.close()
        if not self._ended.done():
            self._ended.set_result(EXIT_OK)

    def _stop_timed_out(self) -> None:
        """End the process: a disk that hangs must not keep it, since a clean stop only saves time.
        The same holds for jobs of asyncio's own threads, which it waits for after a finished
        stop."""
        if self._ended.done():
            end_now(self._ended.result())
        self._log.error("stop_timed_out")
        end_now(EXIT_FAILED)

    def _is_second(self) -> None:
        """End: another process has this directory, or one that this is a copy of."""
        end_now(EXIT_FAILED)

    def _disk_failed(self, error: BaseException) -> None:
        """End before anything else can run: nothing may be acknowledged after a failed fsync."""
        self._log.error("disk_failed", error=f"{type(error).__name__}: {error}")
        end_now(EXIT_FAILED)

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """End: an exception left a callback, so state may be inconsistent."""
        del loop
        error = context.get("exception")
        if isinstance(error, OSError) and "transport" in context:
            return  # a socket failed while asyncio was closing it
        if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES and "socket" in context:
            self._cannot_accept()  # asyncio tries again in a second
            return
        self._logger.error(
            str(context.get("message")),
            exc_info=error if isinstance(error, BaseException) else None,
        )
        end_now(EXIT_FAILED)

    def _ring_refused(self, error: OSError) -> None:
        """Log that blocks of the journal are written by a thread from now on."""
        self._log.info("io_uring_refused", journal_writes="thread", error=str(error))

    def _read_refused(self, error: OSError) -> None:
        """Log that a read from disk was abandoned: its client retries."""
        now = self._loop.time()
        if now >= self._next_refusal_warning:
            self._next_refusal_warning = now + _WARNING_SECONDS
            self._log.warning("read_refused", error=str(error))

    def _lacks_descriptors(self) -> bool:
        """Return True if clients were recently rejected for lack of a descriptor."""
        since = self._loop.time() - _WARNING_SECONDS
        return any(listener.refused_s > since for listener in self._listeners)

    def _cannot_accept(self) -> None:
        """Log that the metrics port cannot accept for lack of a descriptor. asyncio reports it once
        for each pending connection."""
        now = self._loop.time()
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            self._log.warning("out_of_file_descriptors", listener="http")


def stop_seconds_max(config: Config) -> float:
    """Return the time after which a stop is aborted: the wait for leaderships and clients, and a
    second for the disk."""
    return max(2.0, config.host.transfer_stop_ms / 1_000 + 1.0)


def _health(server: Server) -> Health:
    problems = problems_of(server)
    kinds = {problem.kind for problem in problems}
    is_ready = server.state is ServerState.SERVING and "no_quorum" not in kinds
    return Health(
        is_ready,
        {
            "ok": kinds <= NOT_WRONG,
            "ready": is_ready,
            "problems": [asdict(problem) for problem in problems],
            **server.health(),
        },
    )


def end_now(status: int) -> NoReturn:
    """End the process after shutting down its connections: a thread, or a write in the kernel, that
    waits for a hanging disk keeps the files of an ended process open, and peers and clients would
    wait that long.

    The sockets are shut down, not closed: another thread must not reuse a descriptor for a file.
    The process ends even if this fails.
    """
    try:
        for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
            if descriptor > _STANDARD_ERROR:
                with contextlib.suppress(OSError):  # not a socket, or not connected
                    _shut_down(descriptor)
    finally:
        os._exit(status)


def _shut_down(descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    try:
        connection.shutdown(socket.SHUT_RDWR)
    finally:
        connection.detach()


def run(config: Config, on_open: Callable[[], None]) -> int:
    """Run one server in this process until it is stopped. Return its exit code. See `Process`."""
    if not __debug__:
        sys.stderr.write(
            "vdl: cannot run under python -O: it removes assertions that protect data; start "
            "without -O\n"
        )
        return EXIT_FAILED

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, TurnLoop), loop
        return runner.run(Process(config, loop, on_open).run())
