"""What tokens of OAUTHBEARER must be, and where the keys are that they are signed with.

Must not know: tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OauthOptions:
    """Under Kafka's names, below `sasl.oauthbearer`."""

    jwks_url: str = ""
    """`jwks.endpoint.url`: where the issuer's keys are, `https://` or `file://`. Empty: nobody can
    log in by a token."""
    jwks_refresh_ms: int = 3_600_000
    """`jwks.endpoint.refresh.ms`: how often they are fetched anew."""
    audience: str = ""
    """`expected.audience`: one of these, separated by commas, must be in a token."""
    issuer: str = ""
    """`expected.issuer`: who must have issued it."""
    clock_skew_s: int = 30
    """`clock.skew.seconds`: how far the issuer's clock may be from ours."""
    subject_claim: str = "sub"
    """`sub.claim.name`: the claim that is the user's name."""
    ca: str = ""
    """PEM file of who signs the certificate of an `https://` address; empty: those of the
    system."""

    @property
    def is_complete(self) -> bool:
        """Whether tokens can be judged. A token of anybody for anybody is never taken."""
        return bool(self.jwks_url and self.audience and self.issuer)

    @property
    def audiences(self) -> tuple[str, ...]:
        """Those of `audience`."""
        return tuple(one.strip() for one in self.audience.split(",") if one.strip())
