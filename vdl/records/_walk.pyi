from vdl.records.walk import Buffer, Walked

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
def places(records: Buffer, count: int, /) -> tuple[bytes, int]: ...
