"""One snapshot of an Iceberg table that adds and removes data files and files of deleted rows.

PyIceberg reads files of deleted rows and writes none: its manifests are of data files, and it takes
data files only out of manifests. `RowDelta` does both, as Iceberg's own class of that name does for
an upsert: a manifest that has a removed file is written again, with the file marked as deleted, and
what is added has a manifest for each kind.

Manifests of data files are merged as PyIceberg's are, by the table's properties, and those of
deleted rows in the same way: so a commit does not become slower with the number of those before it.

Must not know: Spark, Kafka, how a job's offsets are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _MergeAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from vdl.pipeline.deleted_rows import PATH_ID
from vdl.pipeline.errors import PipelineError

OTHERS = "rows were deleted from it in a way that this sink does not read"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot. `deletes`: the file of its deleted rows; None: it has none.

    `deleted`: their number, or more if another writer has repeated some.
    """

    data: DataFile
    deletes: DataFile | None = None

    @property
    def deleted(self) -> int:
        return 0 if self.deletes is None else int(self.deletes.record_count)

    @property
    def files(self) -> list[DataFile]:
        return [self.data] if self.deletes is None else [self.data, self.deletes]

    @property
    def name(self) -> tuple[str, str]:
        """Identity that changes as soon as a row of the file is deleted."""
        return self.data.file_path, "" if self.deletes is None else self.deletes.file_path


def live_files(table: Table) -> list[LiveFile]:
    """Return the data files of the current snapshot, in the order they came. Raises PipelineError
    where rows were deleted in another way than `deleted_rows` has it."""
    data = [
        (entry.sequence_number or 0, entry.data_file)
        for entry in _entries(table, ManifestContent.DATA)
    ]
    of = by_data_file(table, deletes_of(table))
    data.sort(key=lambda one: (one[0], one[1].file_path))
    return [live_file(table, file, of) for _, file in data]


def live_file(table: Table, data: DataFile, deletes: Mapping[str, DataFile]) -> LiveFile:
    """Return a data file with the file of its deleted rows, if it is among `deletes`.

    Raises PipelineError if another writer has written it in a format that is not read here.
    """
    if data.file_format != FileFormat.PARQUET:
        raise PipelineError(f"{table.location()}: {data.file_path} is not a Parquet file")
    return LiveFile(data, deletes.get(data.file_path))


def deletes_of(table: Table) -> list[DataFile]:
    """Return all files of deleted rows of the current snapshot, of any kind."""
    return [entry.data_file for entry in _entries(table, ManifestContent.DELETES)]


def _entries(table: Table, content: ManifestContent) -> Iterator[ManifestEntry]:
    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        if manifest.content == content:
            yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)


def by_data_file(table: Table, deletes: Iterable[DataFile]) -> dict[str, DataFile]:
    """Return files of deleted rows by the location of their data file. Raises PipelineError for one
    that is not of one data file, or one of several of a data file."""
    found: dict[str, DataFile] = {}
    for file in deletes:
        lower, upper = ((b or {}).get(PATH_ID) for b in (file.lower_bounds, file.upper_bounds))
        is_read = file.file_format == FileFormat.PARQUET
        is_known = file.content == DataFileContent.POSITION_DELETES and is_read and lower == upper
        location = (lower or b"").decode()
        if not is_known or not location or location in found:
            raise PipelineError(f"{table.location()}: {OTHERS}")
        found[location] = file
    return found


def shared_by_rows(table: Table, file: DataFile) -> tuple[tuple[str, Any], ...]:
    """Return (column, value) where all rows of a file have the value, by its partition.

    The file itself need not have such a column. The spec may be an older one of the table.
    """
    spec, schema = table.specs()[file.spec_id], table.schema()
    names = [schema.find_column_name(one.source_id) for one in spec.fields]
    return tuple(
        (name, file.partition[n])
        for n, (one, name) in enumerate(zip(spec.fields, names, strict=True))
        if name is not None and isinstance(one.transform, IdentityTransform)
    )


def deletes_file(path: str, rows: int, size: int, of: DataFile) -> DataFile:
    """Return what a manifest says of a file of deleted rows; `of`: the data file."""
    bounds = {PATH_ID: of.file_path.encode()}
    found = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(of.partition[n] for n in range(len(of.partition)))),
        record_count=rows,
        file_size_in_bytes=size,
        lower_bounds=bounds,
        upper_bounds=dict(bounds),
    )
    found.spec_id = of.spec_id
    return found


class RowDelta(_MergeAppendFiles):
    """Use in a `with`, with `append_data_file` and `delete_data_file` for files of both kinds.
    Raises ValidationException where a removed file is not in the table."""

    def __init__(
        self, transaction: Transaction, table: Table, facts: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(
            operation=Operation.OVERWRITE,
            transaction=transaction,
            io=table.io,
            snapshot_properties=dict(facts or {}),
        )

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        return tuple(map(self._in_order, updates)), requirements

    def _in_order(self, update: TableUpdate) -> TableUpdate:
        """Return the update with a snapshot that is not older than the one before it.

        The clock of another writer's machine may be ahead. Iceberg's own library refuses to write
        or read a table with a snapshot that is a minute older than the one before it.
        """
        if not isinstance(update, AddSnapshotUpdate):
            return update
        known = self._transaction.table_metadata.snapshot_log
        time_ms = max([update.snapshot.timestamp_ms, *(one.timestamp_ms for one in known[-1:])])
        snapshot = update.snapshot.model_copy(update={"timestamp_ms": time_ms})
        return update.model_copy(update={"snapshot": snapshot})

    def _manifests(self) -> list[ManifestFile]:
        is_append = all(one.content == DataFileContent.DATA for one in self._added_data_files)
        if is_append and not self._deleted_data_files:
            self._operation = Operation.APPEND
        kept, replaced = self._of_parent()
        added = [self._written(*kind, entries) for kind, entries in self._added().items()]
        return self._process_manifests([*added, *replaced, *kept])

    def _added(self) -> dict[tuple[ManifestContent, int], list[ManifestEntry]]:
        """Return what is added by kind and partition spec: new rows have the table's, rows written
        again that of their former file, and deleted rows that of their data file."""
        found: dict[tuple[ManifestContent, int], list[ManifestEntry]] = {}
        for file in self._added_data_files:
            is_data = file.content == DataFileContent.DATA
            content = ManifestContent.DATA if is_data else ManifestContent.DELETES
            kind = (content, file.spec_id)
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
            )
            found.setdefault(kind, []).append(entry)
        return found

    def _of_parent(self) -> tuple[list[ManifestFile], list[ManifestFile]]:
        """Return manifests of the snapshot before that stay, and those that take the place of
        others of it."""
        kept: list[ManifestFile] = []
        replaced: list[ManifestFile] = []
        removed = {file.file_path for file in self._deleted_data_files}
        missing = set(removed)
        parent = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        for manifest in [] if parent is None else parent.manifests(self._io):
            if not manifest.has_added_files() and not manifest.has_existing_files():
                continue
            live = self.fetch_manifest_entry(manifest) if missing else []
            here = {one.data_file.file_path for one in live} & removed
            if not here:
                kept.append(manifest)
                continue
            missing -= here
            entries = [self._carried(one, is_gone=one.data_file.file_path in here) for one in live]
            spec_id = manifest.partition_spec_id
            replaced.append(self._written(manifest.content, spec_id, entries))
        if missing:
            raise ValidationException(f"not in the table any more: {', '.join(sorted(missing))}")
        return kept, replaced

    def _carried(self, entry: ManifestEntry, *, is_gone: bool) -> ManifestEntry:
        status = ManifestEntryStatus.DELETED if is_gone else ManifestEntryStatus.EXISTING
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=self._snapshot_id if is_gone else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _written(
        self, content: ManifestContent, spec_id: int, entries: Sequence[ManifestEntry]
    ) -> ManifestFile:
        with self._writer(content, spec_id) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _writer(self, content: ManifestContent, spec_id: int) -> Any:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(self.spec(spec_id))
        return DeletesWriter(
            self.spec(spec_id), self.schema(), self.new_manifest_output(), self._snapshot_id,
            self._compression,
        )  # fmt: skip

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        found: list[ManifestFile] = []
        for content in ManifestContent:
            of_kind = [one for one in manifests if one.content == content]
            merging = _ManifestMergeManager(
                target_size_bytes=self._target_size_bytes,
                min_count_to_merge=self._min_count_to_merge,
                merge_enabled=self._merge_enabled,
                snapshot_producer=_OneKind(self, content),
            )
            found += merging.merge_manifests(of_kind)
        return found


class DeletesWriter(ManifestWriterV2):
    """Writer of a manifest of position delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _OneKind:
    """The part of a snapshot that PyIceberg uses to merge manifests of one kind."""

    def __init__(self, snapshot: RowDelta, content: ManifestContent) -> None:
        self.snapshot_id = snapshot.snapshot_id
        self.spec = snapshot.spec
        self.fetch_manifest_entry = snapshot.fetch_manifest_entry
        self._snapshot = snapshot
        self._content = content

    def new_manifest_writer(self, spec: Any) -> Any:
        return self._snapshot._writer(self._content, spec.spec_id)
