"""Requirements on tokens of OAUTHBEARER, and the location of the keys that sign them.

Does not depend on tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OauthOptions:
    """Options under Kafka's names, below `sasl.oauthbearer`."""

    jwks_url: str = ""
    """`jwks.endpoint.url`: location of the issuer's keys, `https://` or `file://`. Empty: logins by
    a token are disabled."""
    jwks_refresh_ms: int = 3_600_000
    """`jwks.endpoint.refresh.ms`: interval at which they are fetched."""
    audience: str = ""
    """`expected.audience`: one of these, separated by commas, must be in a token."""
    issuer: str = ""
    """`expected.issuer`: the issuer that a token must name."""
    clock_skew_s: int = 30
    """`clock.skew.seconds`: maximum difference between the issuer's clock and ours."""
    subject_claim: str = "sub"
    """`sub.claim.name`: the claim that is the user's name."""
    ca: str = ""
    """PEM file of the CA of an `https://` address; empty: the CAs of the system."""

    @property
    def is_complete(self) -> bool:
        """True if tokens can be validated: keys, audience and issuer are all set."""
        return bool(self.jwks_url and self.audience and self.issuer)

    @property
    def audiences(self) -> tuple[str, ...]:
        """The audiences in `audience`."""
        return tuple(one.strip() for one in self.audience.split(",") if one.strip())
