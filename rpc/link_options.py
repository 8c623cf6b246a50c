"""Times and bounds of the links of one server."""

from __future__ import annotations

from dataclasses import dataclass

from rpc.peer import DEFAULT_LIMITS, PeerLimits


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Times and bounds of all links of one server."""

    limits: PeerLimits = DEFAULT_LIMITS
    heartbeat_ms: int = 100
    ping_idle_ms: int = 500
    silent_ms_max: int = 2_000
    suspect_ms_max: int = 300
    """A link whose peer dials again must bring a byte within this time."""
    attempt_ms_max: int = 1_000
    """From the start of a dial to the peer's HELLO; also for an inbound stream's HELLO."""
    backoff_first_ms: int = 20
    backoff_max_ms: int = 1_000
    redial_report_ms: int = 100
    stable_ms: int = 200
    confirm_ms_max: int = 100
    """Time that `confirm` waits for a peer that neither answers nor is lost."""
    turn_messages_max: int = 512
    """Approximate number of messages that all links deliver in one turn of the loop. It leaves a
    busy server time to send its own heartbeats and answers."""
    piece_bytes_max: int = 4 << 20
    """Largest piece of a frame, however fast the link: the entries of other groups wait for one.
    Most frames of ordinary batches are smaller, and are not cut."""
    turn_bytes: int = 4 << 20
    """Bytes of a link after which no piece begins in the same turn of the loop. A peer on this
    machine may take 100 MB as fast as they are written, and the loop would wait."""
    quick_redials_ms: tuple[int, ...] = (1, 4, 16)
    """Pauses before dialling again when a lost peer accepts and then dies before its HELLO."""
    inbound_max: int = 64
    """Inbound streams that have not sent HELLO yet, at one time."""
    peers_max: int = 1_024


DEFAULT_OPTIONS = LinkOptions()
