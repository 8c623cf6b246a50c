"""Credentials of users in the catalog: independent changes, bounded as a whole."""

from __future__ import annotations

import pytest

from vdl.errors import ErrorCode
from vdl.state import scram_credentials
from vdl.state.catalog import Catalog
from vdl.state.commands import AlterScramCredentials, ScramUpsert

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


def upsert(user: str, mechanism: str = SHA_512, salt: bytes = b"salt") -> ScramUpsert:
    return ScramUpsert(user, mechanism, 4096, salt, b"stored", b"server")


def alter(
    catalog: Catalog,
    *upserts: ScramUpsert,
    deletions: tuple[tuple[str, str], ...] = (),
    decoy_key: bytes = b"key",
    only_first: bool = False,
) -> list[ErrorCode]:
    command = AlterScramCredentials(list(deletions), list(upserts), decoy_key, only_first)
    return [code for code, _ in catalog.apply(command, 0, 1).errors]


def copy_of(catalog: Catalog) -> Catalog:
    copy = Catalog()
    copy.load(catalog.items())
    return copy


def test_credentials_survive_a_snapshot_whole() -> None:
    """Users, their mechanisms, and the key for answers to unknown users."""
    catalog = Catalog()
    alter(catalog, upsert("a"), upsert("a", SHA_256), upsert("ü" * 100))
    alter(catalog, deletions=(("a", SHA_256),))
    copy = copy_of(catalog)
    assert copy.items() == catalog.items()
    assert copy.item_count == catalog.item_count == len(catalog.items())
    assert copy.scram.users() == ["a", "ü" * 100]
    assert dict(copy.scram.of("a")) == {SHA_512: upsert("a")}
    assert copy.scram.decoy_key == b"key"


def test_credentials_that_change_are_stored_with_the_next_checkpoint() -> None:
    """A checkpoint takes items marked dirty, deletions included."""
    catalog = Catalog()
    alter(catalog, upsert("a"))
    stored = dict(catalog.take_dirty())
    alter(catalog, deletions=(("a", SHA_512),))
    stored |= dict(catalog.take_dirty())
    kept = {key: value for key, value in stored.items() if value is not None}
    assert kept.items() <= dict(catalog.items()).items()
    assert len([key for key in kept if key[:1] == b"u"]) == 1  # the key for decoys


def test_command_applied_twice_changes_nothing_more() -> None:
    """A client's retry has no further effect."""
    once, twice = Catalog(), Catalog()
    for catalog, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            assert alter(catalog, upsert("a"), upsert("b")) == [ErrorCode.NONE] * 2
    assert once.items() == twice.items()


def test_deletion_of_what_is_not_there_does_not_stop_the_rest() -> None:
    catalog = Catalog()
    found = alter(catalog, upsert("a"), deletions=(("a", SHA_256), ("x", SHA_512)))
    assert found == [ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.NONE]
    assert catalog.scram.users() == ["a"]


def test_first_users_count_once_for_ever() -> None:
    """First users are ignored when there are users, and after the last one was removed.

    Otherwise they would return with the next start of a server.
    """
    catalog = Catalog()
    alter(catalog, upsert("admin"), only_first=True)
    assert catalog.scram.users() == ["admin"]
    alter(catalog, upsert("other"), only_first=True, decoy_key=b"another")
    assert catalog.scram.users() == ["admin"]
    alter(catalog, deletions=(("admin", SHA_512),))
    for state in (catalog, copy_of(catalog)):
        alter(state, upsert("admin"), only_first=True)
        assert state.scram.users() == []
        assert state.scram.decoy_key == b"key"


def test_credentials_are_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused; a replacement is not, and a removal makes space."""
    catalog = Catalog()
    alter(catalog, upsert("a"))
    size = catalog.scram._bytes
    monkeypatch.setattr(scram_credentials, "ALL_BYTES_MAX", 2 * size)
    assert alter(catalog, upsert("b"), upsert("c")) == [
        ErrorCode.NONE,
        ErrorCode.UNACCEPTABLE_CREDENTIAL,
    ]
    assert alter(catalog, upsert("b")) == [ErrorCode.NONE]
    assert alter(catalog, upsert("b", salt=b"a longer salt")) == [ErrorCode.UNACCEPTABLE_CREDENTIAL]
    assert alter(catalog, upsert("c"), deletions=(("a", SHA_512),)) == [ErrorCode.NONE] * 2
    assert copy_of(catalog).scram._bytes == catalog.scram._bytes == 2 * size
