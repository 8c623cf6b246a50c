"""Regular expressions over what clients say: what `re` matches, in time linear in the text."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.linear_regex import PATTERN_CHARS_MAX, STATES_MAX, BadPattern, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [""], ["a"]),
        ("abc", ["abc"], ["ab", "abcd", ""]),
        ("a.c", ["abc", "a.c"], ["ac", "a\nc"]),
        ("^ab$", ["ab"], ["aab"]),
        ("a|bc|", ["a", "bc", ""], ["b", "abc"]),
        ("(?:ab)+c?", ["ab", "ababc"], ["c", "abcc"]),
        ("(a(b|c)*)d", ["ad", "abcbd"], ["abc"]),
        ("[a-c]{2,3}", ["ab", "abc"], ["a", "abca", "ad"]),
        ("x{2}y{1,}", ["xxy", "xxyy"], ["xy", "xx"]),
        ("[^a-z.]*", ["A-1", ""], ["a", "."]),
        (r"\d+\.\d+\.\d+", ["2.15.0"], ["2.15", "2x15x0"]),
        (r"[\w\-]+", ["a_1-b"], ["a b", ""]),
        (r"\S+\s\D", ["a b", "1 x"], ["a 1"]),
        (r"\(\)\[\]\\", ["()[]\\"], ["()"]),
        ("[]a]+", ["a]"], ["[a]"]),
        ("[a-]+", ["a-a"], ["b"]),
        ("apache-kafka-java", ["apache-kafka-java"], ["apache-kafka"]),
        (".*?lazy.+?", ["is lazy!"], ["lazy"]),
        ("()*x", ["x"], [""]),
    ],
)
def test_pattern_matches_the_whole_text(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    """As `re.fullmatch` says, too."""
    compiled = compile_pattern(pattern)
    for text in (*matching, *others):
        assert compiled.matches(text) is (text in matching), text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            assert bool(re.fullmatch(pattern, text)) is (text in matching), text


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("(^t.*)|(^u$)", ["t1", "u"], ["u1", "at"]),
        ("a^b", [], ["ab", "a\nb"]),
        ("a$|^b", ["a", "b"], ["ab"]),
        ("(?m)a$\\n^b", ["a\nb"], ["ab"]),
        ("(?i)Ab[c-d]", ["aBC", "ABd"], ["abe"]),
        ("a(?i)b(?-i)c", ["abc", "aBc"], ["aBC", "Abc"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB"]),
        ("(?s).+", ["a\nb"], [""]),
        ("(?s:a.)b.", ["a\nbc"], ["a\nb\n"]),
        ("(?P<year>\\d+)-(?<month>\\d+)", ["2026-11"], ["2026"]),
        (r"\Aab\z", ["ab"], ["abc"]),
        (r"a.*\bc\b.*", ["a c", "a.c.d"], ["ac", "a cd"]),
        (r"a\Bb", ["ab"], ["a", "a b"]),
        (r"\Qa.b*\E+c", ["a.b*c", "a.b**c"], ["aab*c", "a.bc"]),
        (r"\Qa|b", ["a|b"], ["a", "b"]),
        ("[[:alpha:][:digit:]_]+", ["aZ_9"], ["a-b", "é"]),
        ("[^[:space:]]+", ["ab"], ["a b"]),
        (r"\pL+\p{Nd}", ["é1", "ab2"], ["1a", "ab"]),
        (r"\P{L}+", ["12"], ["a"]),
        (r"[^\pL]", ["1"], ["é"]),
        (r"\x41\x{e9}\061", ["Aé1"], ["A"]),
        ("a{", ["a{"], ["a"]),
        ("a{,2}", ["a{,2}"], ["aa"]),
        ("[[a]+", ["[a"], ["]"]),
        (r"[\]\-x]+", ["]-x"], ["\\"]),
        (r"[\d.]+", ["1.5"], ["a"]),
        ("orders-(eu|us)-[0-9]{1,3}?", ["orders-eu-12"], ["orders-de-1", "orders-eu-1234"]),
    ],
)
def test_language_is_that_of_re2(pattern: str, matching: list[str], others: list[str]) -> None:
    """https://github.com/google/re2/wiki/Syntax, matched as a whole."""
    compiled = compile_pattern(pattern)
    for text in (*matching, *others):
        assert compiled.matches(text) is (text in matching), text


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", "^", "$", r"\b", r"\B", "(?i:A)"]),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{}|{}".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}"])),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(pattern=PATTERNS, text=st.text("abc", min_size=1, max_size=6))
def test_pattern_matches_what_python_matches(pattern: str, text: str) -> None:
    """Whatever is in the language."""
    assert compile_pattern(pattern).matches(text) is bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[a", "[]", "*", "+a", "a**", "a{2}{2}", "a{3,2}", "a{1001}",
        "\\", r"\1", "(?=a)", "(?!a)", "(?<=a)", "(?P<n", "(?P<>a)", "(?i", "(?x)a", "[b-a]",
        r"[a-\d]", "[[:what:]]", r"\p{Greek}", r"\pX", r"\x{110000}", r"\xg0", r"\C", r"\é",
        "a" * (STATES_MAX + 1), "((((a{9}){9}){9}){9})", "(((){99}){99}){99}",
        "(" * 60 + ")" * 60, "|" * (PATTERN_CHARS_MAX + 1),
    ],
)  # fmt: skip
def test_pattern_that_is_none_or_too_large_is_refused(pattern: str) -> None:
    """When it is set, not when a client comes."""
    with pytest.raises(BadPattern):
        compile_pattern(pattern)


def test_match_takes_no_more_steps_than_states_and_characters() -> None:
    """`re` would need longer than the universe is old for this one."""
    compiled = compile_pattern("(a*)*(a|aa)+b")
    assert not compiled.matches("a" * 250)
