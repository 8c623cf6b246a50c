"""A cluster is formed exactly once, with wiped servers and with servers that are alone."""

import msgspec
import pytest

from vdl.logstream.bootstrap import (
    Birth,
    BirthRecord,
    BirthState,
    decode_record,
    encode_record,
)

DIGEST = b"d" * 32
DIRECTORIES = {1: b"a" * 16, 2: b"b" * 16, 3: b"c" * 16}


def birth_of(server_id: int, directory_id: bytes | None = None) -> Birth:
    return Birth(
        server_id=server_id,
        directory_id=directory_id or DIRECTORIES[server_id],
        seeds=(1, 2, 3),
        digest=DIGEST,
    )


def record() -> BirthRecord:
    return BirthRecord("cluster", tuple(DIRECTORIES.items()))


def test_lowest_seed_founds_only_when_every_seed_is_empty() -> None:
    """A silent seed may belong to a cluster: its answer is required."""
    birth = birth_of(1)
    birth.seed_is_empty(2, DIRECTORIES[2], DIGEST)
    assert not birth.may_found
    birth.seed_is_empty(3, DIRECTORIES[3], DIGEST)
    assert birth.may_found
    assert birth.found("cluster") == record()
    assert birth.state is BirthState.BORN


def test_seed_that_left_before_founding_is_waited_for() -> None:
    """A server's report counts only while its link is open."""
    birth = birth_of(1)
    for seed in (2, 3):
        birth.seed_is_empty(seed, DIRECTORIES[seed], DIGEST)
    assert birth.missing == []
    birth.seed_left(3)
    assert birth.missing == [3]
    assert not birth.may_found


def test_higher_seed_never_founds() -> None:
    """Two initial voters would form two clusters."""
    birth = birth_of(2)
    for seed in (1, 3):
        birth.seed_is_empty(seed, DIRECTORIES[seed], DIGEST)
    assert not birth.may_found


def test_seed_with_another_configuration_prevents_founding() -> None:
    """Initial voters must agree on the initial voters."""
    birth = birth_of(1)
    birth.seed_is_empty(2, DIRECTORIES[2], DIGEST)
    birth.seed_is_empty(3, DIRECTORIES[3], b"other")
    assert not birth.may_found


def test_initial_voter_adopts_record_that_names_its_directory() -> None:
    """An initial voter without the record receives it from any member."""
    birth = birth_of(2)
    assert birth.answered(record()) is BirthState.BORN
    assert birth.record == record()


def test_wiped_initial_voter_is_a_newcomer() -> None:
    """Same server id, another directory: it must not vote under its former identity."""
    birth = birth_of(2, directory_id=b"z" * 16)
    assert birth.answered(record()) is BirthState.NEWCOMER
    assert not birth.may_found


def test_wiped_server_alone_waits() -> None:
    """With the other two down no server can report an existing cluster: it waits."""
    assert not birth_of(1, directory_id=b"z" * 16).may_found


def test_single_server_founds_at_once() -> None:
    """Without other seeds it is a complete cluster of one."""
    birth = Birth(server_id=1, directory_id=DIRECTORIES[1], seeds=(1,), digest=DIGEST)
    assert birth.may_found


def test_record_survives_encoding() -> None:
    assert decode_record(encode_record(record())) == record()


def test_record_with_text_that_is_none_is_refused() -> None:
    """A faulty peer's record is refused like any other that cannot be decoded."""
    with pytest.raises(msgspec.DecodeError):
        decode_record(encode_record(record()).replace(b"cluster", b"cluste\x96"))
