"""Where the keys of tokens come from: a file, or an address that is asked over HTTPS.

For a thread: both may take long, within bounds. What cannot be had leaves the keys that there are.

Must not know: tokens.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from vdl.kafka.security.oauth_options import OauthOptions

BYTES_MAX = 1 << 20
_SECONDS_MAX = 10


class KeysUnavailable(Exception):
    """Why there are none."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An issuer that sends elsewhere is no issuer: nobody is to be led to another address."""

    def redirect_request(self, *arguments: object) -> None:
        del arguments


def fetch_keys(options: OauthOptions) -> bytes:
    """The set of keys as it is there now. Raises KeysUnavailable."""
    url = urllib.parse.urlsplit(options.jwks_url)
    if url.scheme == "file":
        return _read(Path(urllib.parse.unquote(url.path)))
    if url.scheme != "https":
        raise KeysUnavailable("neither https:// nor file://")
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler({}),
            _NoRedirect(),
        )
        with opener.open(options.jwks_url, timeout=_SECONDS_MAX) as answer:
            found: bytes = answer.read(BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        raise KeysUnavailable(f"answered with {error.code}") from None
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise KeysUnavailable(str(getattr(error, "reason", error)) or "no answer") from None
    return _bounded(found)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(BYTES_MAX + 1))
    except OSError as error:
        raise KeysUnavailable(error.strerror or "cannot be read") from None


def _bounded(found: bytes) -> bytes:
    if len(found) > BYTES_MAX:
        raise KeysUnavailable("too large")
    return found
