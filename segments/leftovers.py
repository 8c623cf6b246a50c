"""Files of logs that are no more: moved aside first, then removed.

A log is deleted by its absence from the identity; what lies about afterwards, because a process
died between the two, is found at the next start. Must not know: what the files hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import failpoint
from segments.fs import FileSystem
from segments.identity import Identity
from segments.recovery import log_directory


def remove_logs(fs: FileSystem, directory: str, log_ids: Sequence[int]) -> None:
    """Move the files of logs out of the way, durably, then remove them."""
    graves: list[str] = []
    for log_id in log_ids:
        path = log_directory(directory, log_id)
        if not fs.exists(path):
            continue
        failpoint.hit("remove.begun")
        grave = f"{directory}/deleted/{log_id:08x}"
        if fs.exists(grave):
            fs.remove_tree(grave)
        fs.rename(path, grave)
        failpoint.hit("remove.moved")
        graves.append(grave)
    if graves:
        fs.sync_directory(f"{directory}/logs")
        fs.sync_directory(f"{directory}/deleted")
    for grave in graves:
        fs.remove_tree(grave)
        failpoint.hit("remove.removed")


def remove_strangers(fs: FileSystem, directory: str, identity: Identity) -> None:
    """Finish deletions that a crash cut short."""
    known = {f"{log_id:08x}" for log_id in identity.logs}
    strangers = [name for name in fs.list(f"{directory}/logs") if name not in known]
    remove_logs(fs, directory, [int(name, 16) for name in strangers])
    for name in fs.list(f"{directory}/deleted"):
        fs.remove_tree(f"{directory}/deleted/{name}")


def remove_stale(fs: FileSystem, files: Sequence[str], directories: Sequence[str]) -> None:
    """Remove what recovery found not to count, durably: a file that came back could pass for one
    that counts. Newest first, so that a crash leaves no gap before what is left."""
    for path in sorted(files, reverse=True):
        if fs.exists(path):
            fs.unlink(path)
    for parent in sorted({path.rpartition("/")[0] for path in files}):
        fs.sync_directory(parent)
    for path in directories:
        fs.remove_tree(path)
