"""Principals of clients that show a certificate: its subject, written and mapped as in Kafka.

A subject is written as in RFC 2253, most specific part first: "CN=alice,OU=ops,O=Acme". Rules
(`ssl.principal.mapping.rules`) make a shorter name of it. They are tried in their order. A rule is
`DEFAULT`, which keeps the subject, or `RULE:pattern/replacement/[L|U]`, which must match the whole
subject, replaces `$1` by a group, and may convert to lower or upper case. A subject that no rule
matches has no principal, and its client is refused. The same holds for a name with a control
character.

Names are exactly those that Java makes: two subjects that Kafka distinguishes must not become one
principal here.

Does not depend on TLS or permissions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vdl.kafka.security.principal import ANONYMOUS, Principal, is_name

_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""OpenSSL's names of the types that have a keyword in RFC 2253."""
_ENCODED = {"emailAddress": ("1.2.840.113549.1.9.1", 0x16), "serialNumber": ("2.5.4.5", 0x13)}
"""Frequent types without a keyword: their values are written in encoded form (§2.4), with the tag
of their type of string."""
_ESCAPED = re.compile(r'([,+"\\<>;])')
_RULES = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)", re.DOTALL
)
_TOKEN = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
"""In a replacement: an escaped character or a group (`Matcher.replaceAll`)."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern.fullmatch(subject) is None:
            return None
        # Like `String.replaceAll`: the rest of a shorter match is kept.
        name = self.pattern.sub(self.replacement, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class PrincipalRules:
    """Mapping rules of one listener."""

    def __init__(self, text: str = "DEFAULT") -> None:
        """Parse the rules. Raises ValueError(expected form)."""
        self._rules = list(_parse(text))

    def principal_of(self, certificate: Mapping[str, object] | None) -> Principal | None:
        """Return the principal of a certificate in the form of `ssl`.

        ANONYMOUS without a certificate, None if no rule matches.
        """
        if certificate is None:
            return ANONYMOUS
        subject = certificate.get("subject", ())
        assert isinstance(subject, tuple), subject
        name = self.apply(distinguished_name(subject))
        return Principal(name) if name and is_name(name) else None

    def apply(self, subject: str) -> str | None:
        """Return the name that the first matching rule makes of a subject; None if none matches."""
        for rule in self._rules:
            name = subject if rule is None else rule.apply(subject)
            if name is not None:
                return name
        return None


def _parse(text: str) -> Sequence[_Rule | None]:
    """Return the rules of a text; None stands for the unchanged subject."""
    rules: list[_Rule | None] = []
    at = 0
    while at < len(text.rstrip()):
        match = _RULES.match(text, at)
        if match is None:
            raise ValueError('rules such as "RULE:^CN=([^,]+).*$/$1/L,DEFAULT"')
        at = match.end()
        if match[1]:
            rules.append(None)
            continue
        try:
            # In Java \d, \s and \w are ASCII.
            pattern = re.compile(match[2], re.ASCII)
        except re.error as error:
            raise ValueError(
                f"a valid regular expression, but {match[2]!r:.80} is not: {error}"
            ) from None
        groups = [int(token[2]) for token in _TOKEN.finditer(match[3]) if token[2]]
        if any(group > pattern.groups for group in groups):
            raise ValueError(f"only groups that exist in {match[2]!r:.80}")
        rules.append(_Rule(pattern, _TOKEN.sub(_in_python, match[3]), match[4]))
    return rules or [None]


def _in_python(token: re.Match[str]) -> str:
    """Return a token of Java's replacement in the form of Python's template."""
    return rf"\g<{token[2]}>" if token[2] else token[1].replace("\\", r"\\")


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a subject in RFC 2253's form.

    `subject` has the form of `ssl`: parts in the order of the certificate, which is reversed here.
    """
    return ",".join(
        "+".join(_attribute(kind, value) for kind, value in part) for part in reversed(subject)
    )


def _attribute(kind: str, value: str) -> str:
    if kind in _ENCODED:
        oid, tag = _ENCODED[kind]
        data = value.encode()
        if len(data) < 128:
            return f"{oid}=#{bytes((tag, len(data))).hex()}{data.hex()}"
    escaped = _ESCAPED.sub(r"\\\1", value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return f"{_KEYWORDS.get(kind, kind)}={escaped}"
