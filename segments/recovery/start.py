"""A start: the order in which a data directory is opened, so that a crash at any point loses
nothing.

`begin` finds out what there is. It changes only what says nothing about entries or votes: names of
a first start, the identity, files of deleted logs, indexes. Then the store writes the journal's
first block. `finish` removes what recovery found not to count: until that block is durable it may
be the only proof.

Must not know: the loop, what follows a start.
"""

from __future__ import annotations

import random

from ids import NO_SERVER, DirectoryId, ServerId
from segments.api import ForeignDirectory, StoreOptions
from segments.boots import ended, next_boot
from segments.directory.format_note import FORM, read_form, write_form
from segments.directory.identity import Identity, encode, overwrite_identity, write_identity
from segments.directory.log_registry import identity_reserve, replace_identity
from segments.io.fs import FileSystem, is_refused, make_durable_directory, unless_refused
from segments.log.tail_cache import TailCache
from segments.meta.file import Meta
from segments.recovery.missing_parts import check_logs, find_identity, strays_of
from segments.recovery.opening import Recovered, recover
from segments.recovery.orphans import forget_orphans, mend_headers, remove_orphans, remove_stale
from segments.recovery.replay import Progress, replay_journal


def begin(
    fs: FileSystem,
    directory: str,
    options: StoreOptions,
    rng: random.Random,
    progress: Progress,
    server_id: ServerId,
) -> Recovered:
    """What the directory holds, whose lock is held. Blocks. `rng` gives a new one its id, and each
    start its own. `server_id`: whose it is if it is new; `NO_SERVER`: whoever's.

    Raises CorruptRecord (identity, format), OSError, DataMissing when something is not there that
    has been, ForeignFile, ForeignDirectory, and UnknownFormat: nothing on disk is changed then.
    """
    identity = find_identity(fs, directory, may_be_new=options.accept_empty)
    form = read_form(fs, directory)
    if identity is None:
        # Before anything else: what there is without an identity has lost it.
        identity = Identity(
            DirectoryId(rng.randbytes(16)), is_whole=False,
            has_places=bool(options.place_bytes_min), server_id=server_id,
        )  # fmt: skip
        write_identity(fs, directory, encode(identity))
    check_server(directory, identity, server_id)
    if not identity.is_whole:
        for name in ("journal", "logs"):
            make_durable_directory(fs, f"{directory}/{name}")
    replay = replay_journal(fs, f"{directory}/journal", identity, progress)
    check_logs(fs, directory, replay)
    make_durable_directory(fs, f"{directory}/deleted")
    # Its name may be all that the life before it gave the identity: files go by it next.
    fs.sync_directory(directory)
    strays = remove_orphans(fs, directory, identity)
    meta = Meta(fs, f"{directory}/meta", options.meta_map_bytes)
    try:
        fs.sync_directory(directory)
        cache = TailCache(options.cache_bytes_max, options.large_bytes_min)
        recovered = recover(
            fs, directory, identity, replay, cache, meta, options.index_segment_entries, progress
        )
        for log_id in recovered.newly_lost:
            identity.logs[log_id].lost = True
        _note_start(fs, directory, recovered, options, boot_id=rng.getrandbits(64))
        recovered.form = _have_form(fs, directory, form)
    except BaseException:
        meta.close()
        raise
    recovered.strays = [*strays, *replay.strays, *recovered.strays]
    return recovered


def check_server(directory: str, identity: Identity, server_id: ServerId) -> None:
    """Raises ForeignDirectory."""
    if NO_SERVER not in (server_id, identity.server_id) and server_id != identity.server_id:
        raise ForeignDirectory(directory, server_id=server_id, owner=identity.server_id)


def _note_start(
    fs: FileSystem, directory: str, recovered: Recovered, options: StoreOptions, *, boot_id: int
) -> None:
    """Write the identity: one more start, what was found lost, and, before the journal does, that
    entries may lie in segments. A full disk keeps its reserve for what is lost: where there is no
    room otherwise, peers are not told of this start, and no entry is placed in it."""
    identity, end_lsn = recovered.identity, recovered.replay.end_lsn
    boots, had_places = identity.boots, identity.has_places
    identity.boots = next_boot(boots, end_lsn=end_lsn, boot_id=boot_id)
    identity.has_places = had_places or bool(options.place_bytes_min)
    data = encode(identity)
    try:
        if recovered.newly_lost:
            replace_identity(fs, directory, identity_reserve(fs, directory), data)
        else:
            write_identity(fs, directory, data)
    except OSError as error:
        if recovered.newly_lost or not is_refused(error):
            raise
        identity.boots, identity.has_places = ended(boots, end_lsn=end_lsn), had_places
        if identity.boots != boots:
            _note_end(fs, directory, encode(identity))


def _note_end(fs: FileSystem, directory: str, data: bytes) -> None:
    """Write in a start that is no boot where the boot before ended. The journal of this start may
    end before that, and the next one would take it for that boot's: peers that remember more would
    have a healthy directory replaced. So without this there is no start. Raises OSError."""
    is_written = False
    with unless_refused():  # where even that takes room
        is_written = overwrite_identity(fs, directory, data)
    if not is_written:
        replace_identity(fs, directory, identity_reserve(fs, directory), data)


def _have_form(fs: FileSystem, directory: str, form: int) -> int:
    """Say, before the journal does, what a version must know. Where there is no room for that, this
    life writes nothing which asks for it."""
    if form < FORM:
        try:
            write_form(fs, directory, FORM)
        except OSError as error:
            if not is_refused(error):
                raise
            return form
    return FORM


def finish(fs: FileSystem, directory: str, recovered: Recovered) -> list[str]:
    """Remove what does not count, and make whole what was damaged. Paths of what is not the
    store's. Blocks. Raises OSError."""
    identity = recovered.identity
    remove_stale(fs, recovered.stale_files, recovered.stale_directories)
    forget_orphans(recovered.meta, identity)
    if not identity.is_whole or identity.is_half_damaged:
        is_mended, identity.is_whole = identity.is_whole, True
        try:
            replace_identity(fs, directory, identity_reserve(fs, directory), encode(identity))
        except OSError as error:
            # The other half says it all; the next start has room for both, perhaps.
            if not is_mended or not is_refused(error):
                raise
    mend_headers(fs, recovered.replay)
    return strays_of(fs, directory) + recovered.strays
