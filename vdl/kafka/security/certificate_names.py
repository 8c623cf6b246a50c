"""Principals of clients that show a certificate: its subject, as Kafka writes and maps it.

A subject is written as RFC 2253 does it, most specific part first: "CN=alice,OU=ops,O=Acme". Rules
(`ssl.principal.mapping.rules`) make a shorter name of it. They are tried in their order; one is
`DEFAULT`, which keeps the subject, or `RULE:pattern/replacement/[L|U]`, which needs the whole
subject to match, puts `$1` for a group, and may make it lower or upper case. A subject that no rule
matches has no principal, and its client is refused. So is one whose name has a control character.

Names are made as Java makes them, to the letter: two subjects that Kafka tells apart must not
become one principal here.

Must not know: TLS, permissions.
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
"""What OpenSSL calls the types that RFC 2253 has a word for."""
_ENCODED = {"emailAddress": ("1.2.840.113549.1.9.1", 0x16), "serialNumber": ("2.5.4.5", 0x13)}
"""Frequent ones without a word: their values are written as they are encoded (§2.4), by the tag
of their type of string."""
_ESCAPED = re.compile(r'([,+"\\<>;])')
_RULES = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)", re.DOTALL
)
_TOKEN = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
"""In a replacement: a character that stands for itself, or a group (`Matcher.replaceAll`)."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern.fullmatch(subject) is None:
            return None
        # Like `String.replaceAll`: the rest of a shorter match stays as it is.
        name = self.pattern.sub(self.replacement, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class PrincipalRules:
    """The rules of one listener."""

    def __init__(self, text: str = "DEFAULT") -> None:
        """Raises ValueError(what was expected)."""
        self._rules = list(_parse(text))

    def principal_of(self, certificate: Mapping[str, object] | None) -> Principal | None:
        """Whose certificate this is, as `ssl` describes it; ANONYMOUS without one, None if no rule
        matches."""
        if certificate is None:
            return ANONYMOUS
        subject = certificate.get("subject", ())
        assert isinstance(subject, tuple), subject
        name = self.apply(distinguished_name(subject))
        return Principal(name) if name and is_name(name) else None

    def apply(self, subject: str) -> str | None:
        """The name that the first rule that matches makes of a subject; None if none does."""
        for rule in self._rules:
            name = subject if rule is None else rule.apply(subject)
            if name is not None:
                return name
        return None


def _parse(text: str) -> Sequence[_Rule | None]:
    """The rules of a text; None: the subject as it is."""
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
            raise ValueError(f"a regular expression, but {match[2]!r:.80}: {error}") from None
        groups = [int(token[2]) for token in _TOKEN.finditer(match[3]) if token[2]]
        if any(group > pattern.groups for group in groups):
            raise ValueError(f"groups that {match[2]!r:.80} has")
        rules.append(_Rule(pattern, _TOKEN.sub(_in_python, match[3]), match[4]))
    return rules or [None]


def _in_python(token: re.Match[str]) -> str:
    """Return a token of Java's replacement as a template of Python's has it."""
    return rf"\g<{token[2]}>" if token[2] else token[1].replace("\\", r"\\")


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A subject in RFC 2253's form, from how `ssl` describes it: its parts in the order of the
    certificate, which is the other way round."""
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
