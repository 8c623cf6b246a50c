"""Empty containers that all idle replicas share.

A server has thousands of idle replicas, and each has dozens of queues and tables in which nothing
waits. An empty list takes 56 bytes and an empty dictionary 64. A queue or table therefore begins as
one of these, and its owner replaces it by one of its own before it adds something. These refuse all
additions, so an owner that forgets it fails at once.

Does not depend on the contents.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn


def _refuse(*_: object) -> NoReturn:
    raise TypeError("this container is shared: make another one")


class _NoItems(list[Any]):
    """List without items."""

    __slots__ = ()
    append = extend = insert = __setitem__ = __iadd__ = __imul__ = _refuse


class _NoKeys(dict[Any, Any]):
    """Dictionary without keys."""

    __slots__ = ()
    update = setdefault = __setitem__ = __ior__ = _refuse  # type: ignore[assignment]


NO_ITEMS: Final[list[Any]] = _NoItems()
NO_KEYS: Final[dict[Any, Any]] = _NoKeys()
