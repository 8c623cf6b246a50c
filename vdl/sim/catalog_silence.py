"""Loss of the catalog's Raft messages to one process whose links are up.

All other messages arrive, so the process's catalog replica makes no progress.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import ServerId
from rpc.frames import decode_messages, encode_frames
from rpc.hello import Hello, RejectReason
from rpc.peer import FrameType
from rpc.streams import PeerHandler
from vdl.logstream.state import CATALOG_GROUP


class CatalogSilence:
    """`PeerHandler` in front of a process's own.

    `hears` returns True if catalog messages may pass.
    """

    __slots__ = ("_handler", "_hears")

    def __init__(self, handler: PeerHandler, hears: Callable[[], bool]) -> None:
        self._handler = handler
        self._hears = hears

    def frame(self, server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
        """See `PeerHandler.frame`."""
        if self._hears() or frame_type is not FrameType.RAFT:
            self._handler.frame(server_id, frame_type, payload)
            return
        kept = [one for one in decode_messages(payload) if one[0] != CATALOG_GROUP]
        for _, _, buffers in encode_frames(kept):
            copy = memoryview(bytearray(b"".join(buffers)))
            self._handler.frame(server_id, FrameType.RAFT, copy)

    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        return self._handler.refusal(hello)

    def link_up(self, hello: Hello) -> None:
        self._handler.link_up(hello)

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        self._handler.link_down(server_id, refused=refused)

    def rejected(
        self, server_id: ServerId, reason: RejectReason, text: str, *, by_peer: bool
    ) -> None:
        self._handler.rejected(server_id, reason, text, by_peer=by_peer)

    def beat(self) -> None:
        self._handler.beat()
