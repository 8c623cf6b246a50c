"""PLAIN (RFC 4616): the client sends its name and password, which TLS must hide.

The password is checked against the credentials of SCRAM, so it is stored nowhere, and one user has
one password for all mechanisms. The check takes milliseconds in a thread, also for users that do
not exist.

Does not depend on connections, or on where credentials are stored.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.kafka.host import Compute
from vdl.kafka.security.mechanism import Accepted, Refused, Step
from vdl.kafka.security.principal import Principal
from vdl.kafka.security.scram import Verifier, password_matches

Find = Callable[[str], "tuple[str, Verifier] | None"]
"""Return a user's verifier and its mechanism; None if there is no such user."""


class PlainLogin:
    """One login."""

    def __init__(
        self,
        find: Find,
        decoy_mechanism: str,
        decoy: Callable[[str], Verifier],
        compute: Compute,
        is_locked: Callable[[str], bool],
    ) -> None:
        """`is_locked` returns True if passwords of a user must not be checked now."""
        self._find = find
        self._decoy_mechanism = decoy_mechanism
        self._decoy = decoy
        self._compute = compute
        self._is_locked = is_locked
        self.user = ""

    def step(self, token: bytes, done: Callable[[Step], None]) -> None:
        """See `Mechanism.step`."""
        try:
            authzid, name, password = token.decode("utf-8").split("\0")
        except ValueError:  # also if decoding fails
            done(Refused("malformed token"))
            return
        self.user = name
        if not name or not password:
            done(Refused("the user or the password is empty", is_credential=True))
            return
        if authzid not in ("", name):
            done(Refused("acting for another user is not supported"))
            return
        if self._is_locked(name):
            done(Refused("locked", is_credential=True))
            return
        found = self._find(name)
        if found is None:
            mechanism, verifier = self._decoy_mechanism, self._decoy(name)
        else:
            mechanism, verifier = found
        secret = password.encode()

        def checked(result: bool | BaseException) -> None:
            if isinstance(result, BaseException):
                done(Refused(f"failed in the server: {type(result).__name__}"))
            elif result and found is not None:
                done(Accepted(Principal(name), holds=lambda: self._find(name) is not None))
            else:
                done(Refused("wrong user or password", is_credential=True))

        self._compute(lambda: password_matches(mechanism, secret, verifier), checked)
