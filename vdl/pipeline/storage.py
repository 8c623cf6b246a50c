"""Where files are: in folders, or in an object store.

A path is a folder's, or a URL. In folders what was written is durable when it is said to be: files
and the names of files are synced. An object store needs nothing of that: an object is there, whole,
when its upload has ended, and has no name before. So whoever writes by these calls alone needs no
rename, and can be in both.

What an object store wants to know is in settings, those of `[sink.storage]`; what is missing there
is taken from the environment, by Amazon's names. A secret never stands in a job file.

Must not know: formats of tables, Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from vdl.pipeline.client_secrets import PLACE, looked_up
from vdl.pipeline.errors import PipelineError

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
S3 = frozenset({"s3", "s3a"})
SCHEMES = S3 | {"gs"}
ENVIRONMENT = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}
"""Setting → where it is taken from, if it is not given."""
SECRETS = ("access_key_id", "secret_access_key", "session_token")
REGION = "us-east-1"
"""Where no region is told: stores other than Amazon's take any."""
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
    """Of a URL, in small letters; "" of a folder's path."""
    found = URL.match(path)
    return found[1].lower() if found else ""


def is_url(path: str) -> bool:
    return bool(scheme_of(path))


def problems_of(settings: Mapping[str, str]) -> list[str]:
    """What is wrong with settings; a secret must be a place."""
    found = [f"{name}: there is no such setting" for name in settings if name not in ENVIRONMENT]
    return found + [
        f"{name}: a secret does not stand in a job file; env:NAME or file:PATH do"
        for name in SECRETS
        if name in settings and not PLACE.match(settings[name])
    ]


def resolved_settings(path: str, settings: Mapping[str, str]) -> dict[str, str]:
    """With secrets and what the environment says, for the store that a path is in; nothing for a
    folder, and for stores whose clients look for themselves. Raises SecretMissing."""
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
    """Resolved settings in the words of delta-rs. A commit is a PUT that fails where there is an
    object of that name, so of two writers of one version one is refused."""
    found = {DELTA[name]: value for name, value in settings.items()}
    if settings:
        found["aws_conditional_put"] = "etag"
    if settings.get("endpoint", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


def iceberg_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Resolved settings in PyIceberg's words."""
    return {ICEBERG[name]: value for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that there is. `modified`: seconds since 1970."""

    path: str
    bytes: int
    modified: float


class Storage(Protocol):
    """Files of one kind of place."""

    def make_folder(self, path: str) -> None:
        """With those above it, durably, where it is not there yet."""

    def create(self, path: str) -> Any:
        """A file to write to. It counts once it was closed and `finish` has been called."""

    def finish(self, path: str) -> int:
        """Make a file that was written and closed durable; its size in bytes."""

    def sync_names(self, folders: Iterable[str]) -> None:
        """Make the names in folders durable."""

    def put(self, path: str, data: bytes) -> None:
        """A small file, durably, with its name."""

    def get(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

    def size(self, path: str) -> int | None:
        """None: there is no such file."""

    def entries(self, folder: str) -> list[Entry]:
        """All files below a folder; none where there is no such folder."""

    def remove(self, path: str) -> None:
        """If it is there."""

    def arrow(self, path: str) -> tuple[Any, str]:
        """(file system of Arrow, the path in it)."""

    def open(self, path: str) -> Any:
        """To be read, in any order. Raises FileNotFoundError."""


def storage_of(path: str, settings: Mapping[str, str] | None = None) -> Storage:
    """For a path and all below it; `settings` as `resolved_settings` has them. Raises
    PipelineError."""
    return ObjectStore(path, settings or {}) if is_url(path) else Folders()


class Folders:
    """Of a file system that all who read and write share."""

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
    """By Arrow's clients: Amazon's S3 and what speaks it, and Google's, which finds its own
    settings."""

    def __init__(self, path: str, settings: Mapping[str, str]) -> None:
        self._scheme = scheme_of(path)
        if self._scheme not in SCHEMES:
            raise PipelineError(f"{path}: {self._scheme}:// is not known")
        self._settings = settings
        self._prefix = f"{urlsplit(path).scheme}://"
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
        """Objects need none."""

    def create(self, path: str) -> Any:
        filesystem, inside = self.arrow(path)
        return filesystem.open_output_stream(inside)

    def finish(self, path: str) -> int:
        found = self.size(path)
        if found is None:
            raise FileNotFoundError(path)
        return found

    def sync_names(self, folders: Iterable[str]) -> None:
        """An object has its name when it is there."""

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
        selected = FileSelector(inside, recursive=True, allow_not_found=True)
        return [
            Entry(f"{self._prefix}{told.path}", int(told.size), told.mtime.timestamp())
            for told in filesystem.get_file_info(selected)
            if told.type == FileType.File
        ]

    def remove(self, path: str) -> None:
        filesystem, inside = self.arrow(path)
        try:
            filesystem.delete_file(inside)
        except FileNotFoundError:
            return
