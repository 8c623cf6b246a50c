"""Exceptions of this package, one small tree.

`RemoteError` is the fault of the peer or the network: the link it came over is closed and nothing
else happens. Misuse by our own side is a `ValueError` or an assertion, never an `RpcError`.
"""

from __future__ import annotations


class RpcError(Exception):
    """Base class of all exceptions of this package."""


class RemoteError(RpcError):
    """The other end violated the protocol."""


class NoMemory(RpcError):
    """There is no memory for a frame: its link ends, and nothing else does."""

    def __init__(self, length: int) -> None:
        super().__init__(f"no memory for a frame of {length} bytes")
        self.length = length


class CorruptFrame(RemoteError):
    """A frame's head or payload does not match its CRC: the stream can no longer be trusted."""

    def __init__(self, what: str, *, expected: int, actual: int) -> None:
        super().__init__(f"corrupt {what}: CRC {actual:#010x}, the frame says {expected:#010x}")
        self.what = what
        self.expected = expected
        self.actual = actual


class FrameTooLarge(RemoteError):
    """A frame head announces more payload than this link may carry in its present state."""

    def __init__(self, length: int, *, bytes_max: int) -> None:
        super().__init__(f"frame of {length} bytes, but at most {bytes_max} are allowed")
        self.length = length
        self.bytes_max = bytes_max


class MalformedFrame(RemoteError):
    """A payload with a correct CRC does not have the format of its frame type."""

    def __init__(self, what: str, position: int = 0) -> None:
        super().__init__(f"malformed {what} at byte {position}")
        self.what = what
        self.position = position


class UnexpectedFrame(RemoteError):
    """A frame of this type may not arrive in the link's present state."""

    def __init__(self, frame_type: int, state: str) -> None:
        super().__init__(f"frame type {frame_type} while the link is {state}")
        self.frame_type = frame_type
        self.state = state


class TlsFailed(RemoteError):
    """A connection's encryption failed, or its other end has not authenticated.

    The text contains no encrypted content and no key.
    """


class AdminError(RpcError):
    """An admin call failed. `code` is the gRPC status name, such as `UNAVAILABLE`."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details
