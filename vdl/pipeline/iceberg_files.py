"""How PyIceberg writes a table's metadata on a file system: so that a power cut cannot undo it.

A catalog names a metadata file, which names manifests. PyIceberg leaves it to the file system when
these are written to the disk, so after a power cut a catalog may name what is empty. Here each is
synced before its writer goes on, and so are their names before a catalog is told. (A REST catalog
writes metadata files itself; what is said here of them is its own business then.)

Must not know: Spark, Kafka, how commits are made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from vdl.pipeline.storage import Folders
from vdl.pipeline.table import sync_folder

IMPLEMENTATION = f"{__name__}.SyncedFileIO"

METADATA, LIST = ".metadata.json", "snap-"
"""How the name of a metadata file ends, and that of a snapshot's list of manifests begins."""


class SyncedFileIO(PyArrowFileIO):
    """Of folders. Named to PyIceberg by `IMPLEMENTATION`."""

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        return SyncedFile(found.location, found._path, found._filesystem)


class SyncedFile(PyArrowFile):
    """One that is durable when it was closed."""

    def create(self, overwrite: bool = False) -> Any:
        path = Path(local_path(self.location))
        Folders().make_folder(str(path.parent))
        return _Stream(path, "wb" if overwrite else "xb")


class _Stream:
    """What PyIceberg asks of a file that it writes."""

    def __init__(self, path: Path, mode: str) -> None:
        self._file = path.open(mode)
        self._path = path

    def write(self, data: bytes) -> int:
        return int(self._file.write(data))

    def tell(self) -> int:
        return self._file.tell()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        # Each of them is written behind all that it names, and beside it: their names are made
        # durable with its own.
        if self._path.name.endswith(METADATA) or self._path.name.startswith(LIST):
            sync_folder(self._path.parent)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def local_path(location: str) -> str:
    """Of a location in a folder, also as Java has it (`file:/…`); of one in an object store,
    itself."""
    path = location.removeprefix("file:")
    return location if path == location else f"/{path.lstrip('/')}"
