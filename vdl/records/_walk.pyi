from array import array

from vdl.records.walk import Buffer, Refused, Walked

def walk(
    records: Buffer,
    count: int,
    base_timestamp: int,
    oldest: int,
    newest: int,
    keys_required: bool,
    release: bool,
    /,
) -> Walked: ...
def walk_part(
    records: Buffer, state: array[int], is_last: bool, /
) -> tuple[int, int, tuple[Refused, ...]]: ...
def places(records: Buffer, count: int, /) -> tuple[bytes, int]: ...
