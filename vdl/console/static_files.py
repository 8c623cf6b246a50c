"""Files of the pages, read once into memory. Only these names exist: no path is ever joined.

Does not depend on what is in them.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vdl.console.web import Answer

FOLDER: Final = Path(__file__).parent / "static"
BYTES_MAX: Final = 1 << 20
"""Bound on the size of all files together."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
INDEX: Final = "index.html"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it is sent."""

    content_type: str
    body: bytes
    packed: bytes
    """The body, gzipped."""
    etag: str

    def answer(self, known: str, encodings: str) -> Answer:
        """Return the answer to a browser that has files with the ETags in `known`, and accepts
        `encodings`."""
        headers = {"ETag": f"W/{self.etag}", "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        if self.etag in tags or "*" in tags:
            return Answer(304, self.content_type, b"", headers)
        names = {one.strip() for one in encodings.lower().split(",")}
        if "gzip" in names and len(self.packed) < len(self.body):
            headers["Content-Encoding"] = "gzip"
            return Answer(200, self.content_type, self.packed, headers)
        return Answer(200, self.content_type, self.body, headers)


def read_static_files(folder: Path = FOLDER) -> Mapping[str, StaticFile]:
    """Return the files in a folder by their names, such as `pages/topic.js`."""
    found: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        kind = _TYPES.get(path.suffix)
        if kind is None or not path.is_file() or path.is_symlink():
            continue
        body = path.read_bytes()
        # One tag for both forms must be weak (RFC 9110 §8.8.1).
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        packed = gzip.compress(body, mtime=0)
        found[path.relative_to(folder).as_posix()] = StaticFile(kind, body, packed, etag)
    assert sum(len(one.body) for one in found.values()) <= BYTES_MAX, folder
    return found
