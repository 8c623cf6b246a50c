"""Durable writing of PyIceberg's metadata on a file system, so that a power cut cannot undo it.

A catalog names a metadata file, which names manifests. PyIceberg does not sync these, so after a
power cut a catalog may name an empty file. Here each file is synced before its writer continues,
and so are the names before a catalog is updated. (A REST catalog writes metadata files itself; this
does not apply to them.)

Does not depend on Spark, Kafka, or how commits are made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from vdl.pipeline.storage import Folders
from vdl.pipeline.table import sync_folder

IMPLEMENTATION = f"{__name__}.SyncedFileIO"

METADATA, LIST = ".metadata.json", "snap-"
"""Suffix of a metadata file's name, and prefix of the name of a snapshot's manifest list."""


class SyncedFileIO(PyArrowFileIO):
    """FileIO for folders. PyIceberg finds it by `IMPLEMENTATION`."""

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        return SyncedFile(found.location, found._path, found._filesystem)


class SyncedFile(PyArrowFile):
    """File that is durable once closed."""

    def create(self, overwrite: bool = False) -> Any:
        path = Path(local_path(self.location))
        Folders().make_folder(str(path.parent))
        return _Stream(path, "wb" if overwrite else "xb")


class _Stream:
    """Output stream with the interface that PyIceberg needs."""

    def __init__(self, path: Path, mode: str) -> None:
        self._file = path.open(mode)
        self._path = path

    def write(self, data: bytes) -> int:
        try:
            return int(self._file.write(data))
        except OSError:
            with suppress(OSError), self._file:
                pass  # PyIceberg does not close a file whose first bytes are refused
            raise

    def tell(self) -> int:
        return self._file.tell()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if self._file.closed:
            return
        with self._file:  # Closed also if the disk is full.
            self._file.flush()
            os.fsync(self._file.fileno())
        # Each of these is written after all files that it names, and in the same folder: their
        # names become durable with its own.
        if self._path.name.endswith(METADATA) or self._path.name.startswith(LIST):
            sync_folder(self._path.parent)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def local_path(location: str) -> str:
    """Return the path of a location in a folder, also in Java's form (`file:/…`).

    A location in an object store is returned unchanged.
    """
    path = location.removeprefix("file:")
    return location if path == location else f"/{path.lstrip('/')}"
