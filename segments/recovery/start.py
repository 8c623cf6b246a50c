"""The order in which a start opens a data directory, so that a crash at any point loses nothing.

`begin` finds out what exists. It changes only data that does not describe entries or votes: names
of a first start, the identity, files of deleted logs, indexes. Then the store writes the journal's
first block. `finish` removes files that recovery found not to count: until that block is durable
they may be the only proof.

Does not depend on the loop or on what follows a start.
"""

from __future__ import annotations

import random

from ids import NO_SERVER, DirectoryId, ServerId
from segments.api import ForeignDirectory, StoreOptions
from segments.boots import ended, next_boot
from segments.directory.format_note import FORM_CLEARS, read_form, write_form
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
    """Recover the contents of the directory, whose lock is held. Blocks.

    `rng` gives a new directory its id, and each start its own. `server_id` is assigned to a new
    directory; with `NO_SERVER`, a directory of any server is accepted.

    Raises CorruptRecord (identity, format), OSError, DataMissing if something that existed is
    missing, ForeignFile, ForeignDirectory, and UnknownFormat: nothing on disk is changed then.
    """
    identity = find_identity(fs, directory, may_be_new=options.accept_empty)
    form = read_form(fs, directory)
    if identity is None:
        # Written first: a directory with other files but no identity has lost its identity.
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
    # The previous run may have renamed the identity without a sync: removals rely on it next.
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
    """Check the owner. Raises ForeignDirectory."""
    if NO_SERVER not in (server_id, identity.server_id) and server_id != identity.server_id:
        raise ForeignDirectory(directory, server_id=server_id, owner=identity.server_id)


def _note_start(
    fs: FileSystem, directory: str, recovered: Recovered, options: StoreOptions, *, boot_id: int
) -> None:
    """Write the identity with one more start, newly lost logs, and the flag of placed entries.

    The flag is written before the journal uses it. A full disk keeps its reserve for lost logs. If
    there is no other space, the start is not recorded for peers, and no entry is placed during it.
    """
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
    """Record, in a start that is no boot, where the boot before ended.

    The journal of this start may end before that, and the next start would take its end for that
    boot's: peers that remember more would then have a healthy directory replaced. So without this
    record there is no start. Raises OSError.
    """
    is_written = False
    with unless_refused():  # if even that needs space
        is_written = overwrite_identity(fs, directory, data)
    if not is_written:
        replace_identity(fs, directory, identity_reserve(fs, directory), data)


def _have_form(fs: FileSystem, directory: str, form: int) -> int:
    """Record the form before the journal uses it.

    If there is no space for that, this process writes nothing that requires it.
    """
    if form < FORM_CLEARS:
        try:
            write_form(fs, directory, FORM_CLEARS)
        except OSError as error:
            if not is_refused(error):
                raise
            return form
        return FORM_CLEARS
    return form


def finish(fs: FileSystem, directory: str, recovered: Recovered) -> list[str]:
    """Remove files that do not count, and repair damaged ones.

    Return the paths of files that are not the store's. Blocks. Raises OSError.
    """
    identity = recovered.identity
    remove_stale(fs, recovered.stale_files, recovered.stale_directories)
    forget_orphans(recovered.meta, identity)
    if not identity.is_whole or identity.is_half_damaged:
        is_mended, identity.is_whole = identity.is_whole, True
        try:
            replace_identity(fs, directory, identity_reserve(fs, directory), encode(identity))
        except OSError as error:
            # The other half is complete; the next start may have space for both.
            if not is_mended or not is_refused(error):
                raise
    mend_headers(fs, recovered.replay)
    return strays_of(fs, directory) + recovered.strays
