"""Subjects of certificates as principals: RFC 2253's form, and Kafka's rules for shorter names."""

from __future__ import annotations

import pytest

from vdl.kafka.security.certificate_names import PrincipalRules, distinguished_name
from vdl.kafka.security.principal import ANONYMOUS, Principal

SUBJECT = ((("countryName", "DE"),), (("organizationName", "Acme"),), (("commonName", "alice"),))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (SUBJECT, "CN=alice,O=Acme,C=DE"),
        ((), ""),
        (((("commonName", 'a,b+c"d\\e<f>g;h'),),), r"CN=a\,b\+c\"d\\e\<f\>g\;h"),
        (((("commonName", "#x"),),), r"CN=\#x"),
        (((("commonName", " x "),),), r"CN=\ x\ "),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("emailAddress", "a@b"),),), "1.2.840.113549.1.9.1=#1603614062"),
        (((("title", "x"),),), "title=x"),
    ],
)
def test_subject_is_written_most_specific_part_first(
    subject: tuple[tuple[tuple[str, str], ...], ...], name: str
) -> None:
    """No value can pass for another part."""
    assert distinguished_name(subject) == name


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", "CN=alice,O=Acme,C=DE"),
        (r"RULE:^CN=([^,]+).*$/$1/", "alice"),
        (r"RULE:^CN=([^,]+),O=([^,]+).*$/$1@$2/U", "ALICE@ACME"),
        (r"RULE:^CN=([^,]+).*$/$1@X/L", "alice@x"),
        (r"RULE:^CN=bob$/b/, DEFAULT", "CN=alice,O=Acme,C=DE"),
        (r"RULE:^CN=bob.*$/b/,RULE:CN=(.).*/$1/", "a"),
        (r"RULE:CN=alice/x/", None),
        (r"RULE:^.*O=(A\w+).*$/\/$1/", "/Acme"),
        (r"RULE:^CN=(\w+).*$/\$1\\$1/", r"$1\alice"),
        (r"RULE:.*/x/", "xx"),
    ],
)
def test_rule_that_matches_the_whole_subject_makes_the_name(rules: str, name: str | None) -> None:
    """The first matching rule counts; None if no rule matches."""
    expected = Principal(name) if name is not None else None
    assert PrincipalRules(rules).principal_of({"subject": SUBJECT}) == expected


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000", " "])
def test_space_at_an_end_makes_another_name(space: str) -> None:
    """Java removes none, so "admin" and "admin\\u00a0" are two principals."""
    subject = ((("commonName", f"admin{space}x"),),)
    named = PrincipalRules(rf"RULE:^CN=(admin{space}).*$/$1/").principal_of({"subject": subject})
    assert named == Principal(f"admin{space}")


def test_classes_are_those_of_java() -> None:
    """\\w is ASCII: a name with other letters is not cut down to the ones before them."""
    rules = PrincipalRules(r"RULE:^CN=(\w+).*$/$1/,RULE:^CN=(.*)$/other:$1/")
    subject = ((("commonName", "ädmin"),),)
    assert rules.principal_of({"subject": subject}) == Principal("other:ädmin")


@pytest.mark.parametrize("char", ["\0", "\n", "\x1b", "\x85", "\u2028"])
def test_name_with_a_control_character_is_refused(char: str) -> None:
    subject = ((("commonName", f"a{char}b"),),)
    assert PrincipalRules().principal_of({"subject": subject}) is None


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:",
        "RULE:a",
        "RULE:a/b",
        "RULE:(/b/",
        "RULE:a/$1/",
        "RULE:a/b/X",
        "NONE",
        "DEFAULT DEFAULT",
    ],
)
def test_rules_that_cannot_be_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        PrincipalRules(rules)


def test_client_without_a_certificate_is_anonymous() -> None:
    assert PrincipalRules().principal_of(None) == ANONYMOUS
