"""Storage of files: in folders, or in an object store.

A path is a folder's, or a URL. In folders durability is explicit: files and the names of files are
synced. An object store needs none of that: an object exists, complete, when its upload has ended,
and has no name before. So callers that write only by these methods need no rename, and work with
both.

Settings of an object store are those of `[sink.storage]`; missing ones are taken from the
environment, by Amazon's names. A job file contains no secrets.

Does not depend on table formats or Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from vdl.pipeline.client_secrets import PLACE, looked_up
from vdl.pipeline.errors import PipelineError

TOKEN_BYTES = 16
"""Random bytes in the name of a file that a task writes, so that no two tasks share one."""
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
S3 = frozenset({"s3", "s3a"})
SCHEMES = S3 | {"gs"}
S3_OF_OTHERS = S3 | {"s3n"}
"""Schemes of one store: writers differ in the one that they use."""
ENVIRONMENT = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}
"""Setting → environment variables of its default."""
SECRETS = ("access_key_id", "secret_access_key", "session_token")
REGION = "us-east-1"
"""Default region: stores other than Amazon's accept any."""
DELTA = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
ICEBERG = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
"""Setting → its name in the two libraries that have clients of their own."""


def scheme_of(path: str) -> str:
    """Return the scheme of a URL, in lower case; "" for a folder's path."""
    found = URL.match(path)
    return found[1].lower() if found else ""


def is_url(path: str) -> bool:
    return bool(scheme_of(path))


class PlaceUnclear(PipelineError):
    """It is not certain which file a location names."""

    def __init__(self, location: str) -> None:
        super().__init__(f"{location}: it is not certain which file this names")
        self.location = location


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Which file a location names, so that two locations of one file are equal.

    `scheme`: "file", "s3" or "gs"; `authority`: a bucket, "" for files.
    """

    scheme: str
    authority: str
    path: str


def place_of(location: str) -> FilePlace:
    """Return which file a location names: a path, or a URL in any writer's form.

    Repeated slashes count as one, and links of a file system are followed. Raises PlaceUnclear for
    what other writers may understand in another way: a relative path, `..`, another host's file, a
    scheme that is not known here.
    """
    scheme, _, rest = ("file", "", location) if location[:1] == "/" else location.partition(":")
    scheme = scheme.lower()
    authority = ""
    if rest.startswith("//") and location[:1] != "/":
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
    parts = [part for part in rest.split("/") if part not in {"", "."}]
    is_store = scheme in S3_OF_OTHERS | SCHEMES
    is_known = bool(authority) if is_store else not authority and scheme == "file"
    if not is_known or rest[:1] != "/" or not parts or ".." in parts:
        raise PlaceUnclear(location)
    path = f"/{'/'.join(parts)}"
    if not is_store:
        return FilePlace(scheme, "", os.path.realpath(path))
    return FilePlace("s3" if scheme in S3_OF_OTHERS else scheme, authority, path)


class NamedFiles:
    """Files that a table names, to find out which others nothing names.

    Raises PlaceUnclear if it is not certain which file one of the locations names.
    """

    def __init__(self, locations: Iterable[str]) -> None:
        self._places = {place_of(location) for location in locations}
        # Java writes some locations in the form of a URI, in which "%20" is a space.
        self._places |= {
            replace(place, path=unquote(place.path)) for place in self._places if "%" in place.path
        }
        self._by_path = {place.path: place for place in self._places}

    def has(self, location: str) -> bool:
        """Return True if the table names the file.

        Raises PlaceUnclear if it names one of the same path in another bucket or store, which may
        be another name of the same place.
        """
        place = place_of(location)
        if place in self._places:
            return True
        if place.path in self._by_path:
            raise PlaceUnclear(location)
        return False


def problems_of(settings: Mapping[str, str]) -> list[str]:
    """Return the problems of settings; a secret must be given by its place."""
    found = [f"{name}: unknown setting" for name in settings if name not in ENVIRONMENT]
    return found + [
        f"{name}: a job file must not contain secrets; use env:NAME or file:PATH"
        for name in SECRETS
        if name in settings and not PLACE.match(settings[name])
    ]


def resolved_settings(path: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with secrets and defaults from the environment, for the store of a path.

    Empty for a folder, and for stores whose clients find their own settings. Raises SecretMissing.
    """
    if scheme_of(path) not in S3:
        return {}
    found = {}
    for name, variables in ENVIRONMENT.items():
        given = settings.get(name, "")
        told = next((os.environ[v] for v in variables if os.environ.get(v)), "")
        value = looked_up(name, given) if given and name in SECRETS else given or told
        if value:
            found[name] = value
    return {"region": REGION, **found}


def delta_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Return resolved settings under delta-rs's names.

    A commit is a PUT that fails if an object of that name exists, so of two writers of one version
    one is refused.
    """
    found = {DELTA[name]: value for name, value in settings.items()}
    if settings:
        found["aws_conditional_put"] = "etag"
    if settings.get("endpoint", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


def iceberg_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Return resolved settings under PyIceberg's names."""
    return {ICEBERG[name]: value for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """An existing file. `modified`: seconds since 1970."""

    path: str
    bytes: int
    modified: float


class Storage(Protocol):
    """Operations on files of one kind of storage."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents, durably, unless it exists."""

    def create(self, path: str) -> Any:
        """Return a file to write to. It counts once it is closed and `finish` has been called."""

    def finish(self, path: str) -> int:
        """Make a file that was written and closed durable; return its size in bytes."""

    def sync_names(self, folders: Iterable[str]) -> None:
        """Make the names in folders durable."""

    def put(self, path: str, data: bytes) -> None:
        """Write a small file, durably, with its name."""

    def get(self, path: str) -> bytes:
        """Return the contents of a file. Raises FileNotFoundError."""

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if it does not exist."""

    def entries(self, folder: str) -> list[Entry]:
        """Return all files below a folder, in its scheme; none if the folder does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""

    def arrow(self, path: str) -> tuple[Any, str]:
        """Return (Arrow's file system, the path in it)."""

    def open(self, path: str) -> Any:
        """Open a file for random access. Raises FileNotFoundError."""


def storage_of(path: str, settings: Mapping[str, str] | None = None) -> Storage:
    """Return the storage of a path and everything below it.

    `settings` as returned by `resolved_settings`. Raises PipelineError.
    """
    return ObjectStore(path, settings or {}) if is_url(path) else Folders()


class Folders:
    """File system shared by all readers and writers."""

    def make_folder(self, path: str) -> None:
        folder = Path(path)
        if folder.is_dir():
            return
        missing = [folder, *folder.parents]
        missing = missing[: next(n for n, one in enumerate(missing) if one.exists())]
        folder.mkdir(parents=True, exist_ok=True)
        self.sync_names(str(one.parent) for one in missing)

    def create(self, path: str) -> Any:
        return Path(path).open("wb")

    def finish(self, path: str) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def sync_names(self, folders: Iterable[str]) -> None:
        for folder in folders:
            self.finish(folder)

    def put(self, path: str, data: bytes) -> None:
        with Path(path).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.sync_names([str(Path(path).parent)])

    def get(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def size(self, path: str) -> int | None:
        try:
            return Path(path).stat().st_size
        except FileNotFoundError:
            return None

    def entries(self, folder: str) -> list[Entry]:
        found = []
        for path in Path(folder).rglob("*"):
            try:
                told = path.stat()
            except FileNotFoundError:
                continue  # Removed meanwhile.
            if path.is_file():
                found.append(Entry(str(path), told.st_size, told.st_mtime))
        return found

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def arrow(self, path: str) -> tuple[Any, str]:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), path

    def open(self, path: str) -> Any:
        return self.arrow(path)[0].open_input_file(path)


class ObjectStore:
    """Object store accessed by Arrow's clients.

    Amazon's S3 and compatible ones, and Google's, which finds its own settings.
    """

    def __init__(self, path: str, settings: Mapping[str, str]) -> None:
        self._scheme = scheme_of(path)
        if self._scheme not in SCHEMES:
            raise PipelineError(f"{path}: {self._scheme}:// is not supported")
        self._settings = settings
        self._known: Any = None

    def arrow(self, path: str) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem, S3FileSystem

        if self._scheme not in S3:
            filesystem, inside = FileSystem.from_uri(path)
            self._known = self._known or filesystem
            return self._known, inside
        if self._known is None:
            endpoint = urlsplit(self._settings.get("endpoint", ""))
            self._known = S3FileSystem(
                access_key=self._settings.get("access_key_id"),
                secret_key=self._settings.get("secret_access_key"),
                session_token=self._settings.get("session_token"),
                region=self._settings.get("region", REGION),
                endpoint_override=endpoint.netloc or None,
                scheme=endpoint.scheme or "https",
            )
        return self._known, path.partition("://")[2]

    def open(self, path: str) -> Any:
        filesystem, inside = self.arrow(path)
        return filesystem.open_input_file(inside)

    def make_folder(self, path: str) -> None:
        """Do nothing: objects need no folder."""

    def create(self, path: str) -> Any:
        filesystem, inside = self.arrow(path)
        return filesystem.open_output_stream(inside)

    def finish(self, path: str) -> int:
        found = self.size(path)
        if found is None:
            raise FileNotFoundError(path)
        return found

    def sync_names(self, folders: Iterable[str]) -> None:
        """Do nothing: an object has its name as soon as it exists."""

    def put(self, path: str, data: bytes) -> None:
        with self.create(path) as stream:
            stream.write(data)

    def get(self, path: str) -> bytes:
        filesystem, inside = self.arrow(path)
        with filesystem.open_input_stream(inside) as stream:
            data: bytes = stream.read()
            return data

    def size(self, path: str) -> int | None:
        from pyarrow.fs import FileType

        filesystem, inside = self.arrow(path)
        told = filesystem.get_file_info(inside)
        return int(told.size) if told.type == FileType.File else None

    def entries(self, folder: str) -> list[Entry]:
        from pyarrow.fs import FileSelector, FileType

        filesystem, inside = self.arrow(folder)
        prefix = folder.partition("://")[0]
        selected = FileSelector(inside, recursive=True, allow_not_found=True)
        return [
            Entry(f"{prefix}://{told.path}", int(told.size), told.mtime.timestamp())
            for told in filesystem.get_file_info(selected)
            if told.type == FileType.File
        ]

    def remove(self, path: str) -> None:
        filesystem, inside = self.arrow(path)
        try:
            filesystem.delete_file(inside)
        except FileNotFoundError:
            return
