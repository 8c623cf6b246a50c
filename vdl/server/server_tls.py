"""TLS contexts of one server's ports and links, and the files they are loaded from.

Does not depend on sockets or the event loop.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from rpc.errors import TlsFailed
from rpc.revocations import Revocations
from rpc.tls_context import LinkEncryption, TlsContext
from rpc.tls_stream import LinkSecurity, Offload
from vdl.config.settings import Config

ACCEPTING, DIALING = "peer", "peer (dialling)"
"""Names of the contexts that belong to no listener."""
_WARNED_BEFORE = datetime.timedelta(days=7)
_WARNED_EVERY = datetime.timedelta(days=1)


@dataclass(slots=True)
class Refreshed:
    """Result of a check of the files, by the names of contexts."""

    loaded: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Files that changed and cannot be used: the previous contents stay. Reported once."""
    ending: dict[str, datetime.datetime] = field(default_factory=dict)
    """End of a revocation list that ends soon. Reported once a day."""
    ending_certificates: dict[str, datetime.datetime] = field(default_factory=dict)
    """End of a certificate that ends soon. Reported once a day."""


class ServerTls:
    """TLS contexts of one server: see the module."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.contexts: dict[str, TlsContext] = {}
        """By name of the listener."""
        self._told: dict[str, str] = {}
        self._warned: dict[str, datetime.datetime] = {}
        self._ends: dict[str, datetime.datetime] = {}
        """End of the first certificate of a context to end."""

    def load(self) -> None:
        """Read all files for the first time. Raises TlsFailed."""
        config = self._config
        for listener in config.listeners:
            if listener.protocol.is_encrypted:
                self.contexts[listener.name] = TlsContext(listener.tls, server_side=True)
        if config.tls.secures_links:
            options = config.tls.between_servers()
            self.contexts[ACCEPTING] = TlsContext(options, server_side=True)
            self.contexts[DIALING] = TlsContext(options, server_side=False)
        for name, context in self.contexts.items():
            self._note_end(name, context)

    def link_security(self, offload: Offload) -> LinkSecurity | None:
        """Return the security of the links to other servers; None: they are not encrypted."""
        if ACCEPTING not in self.contexts:
            return None
        links = self._config.tls.links
        return LinkSecurity(
            self._config.tls.cluster,
            self.contexts[ACCEPTING],
            self.contexts[DIALING],
            offload,
            takes_plain=links is not LinkEncryption.REQUIRED,
            dials_plain=links is LinkEncryption.ACCEPTED,
        )

    def revocations(self) -> Revocations | None:
        """Return the revocations of certificates on links and the admin service."""
        context = self.contexts.get(ACCEPTING)
        return None if context is None else context.revocations

    def refresh(self) -> Refreshed:
        """Check the files and load those that changed. For a thread."""
        refreshed = Refreshed()
        for name, ends in self.ending().items():
            if self._is_due(f"certificate of {name}"):
                refreshed.ending_certificates[name] = ends
        for name, context in self.contexts.items():
            self._look_at_end(name, context, refreshed)
            if not context.is_outdated():
                continue
            try:
                context.load()
            except TlsFailed as error:
                if self._told.get(name) != str(error):
                    self._told[name] = refreshed.problems[name] = str(error)
            else:
                self._note_end(name, context)
                self._told.pop(name, None)
                refreshed.loaded.append(name)
        return refreshed

    def _look_at_end(self, name: str, context: TlsContext, refreshed: Refreshed) -> None:
        """Report a revocation list that ends soon: once it has ended, no client is accepted."""
        if context.revocations is None or name == DIALING:
            return
        ends = context.revocations.ends
        if _is_soon(ends) and self._is_due(name):
            refreshed.ending[name] = ends

    def _is_due(self, name: str) -> bool:
        """Return True if a day has passed since this was reported."""
        now = datetime.datetime.now(datetime.UTC)
        if now < self._warned.get(name, now):
            return False
        self._warned[name] = now + _WARNED_EVERY
        return True

    def _note_end(self, name: str, context: TlsContext) -> None:
        """Note the end of a context's certificates. Raises TlsFailed."""
        ends = context.ends()
        if ends is not None:
            self._ends[name] = ends

    def ending(self) -> dict[str, datetime.datetime]:
        """Return the contexts with a certificate that ends soon, or has ended: name → end."""
        return {name: ends for name, ends in self._ends.items() if _is_soon(ends)}


def _is_soon(ends: datetime.datetime) -> bool:
    return ends - datetime.datetime.now(datetime.UTC) < _WARNED_BEFORE
