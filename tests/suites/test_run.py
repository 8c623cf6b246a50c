"""Evaluation of the suites' output by `make suites`."""

from __future__ import annotations

from tests.suites.run import SUITES, Expected, Outcome, load_expected

PRINTED = """\
logs: /somewhere
FAILED 0081_admin (19s) Expected NO_ERROR, not 40: INVALID_CONFIG
FAILED test_admin::test_one[a b]
FAILED test_admin::test_two (did not finish)
skipped 0092_mixed_msgver (0s)
x: 70 passed, 3 failed, 1 skipped
"""
FAILED = ("0081_admin", "test_admin::test_one[a b]", "test_admin::test_two")


def _outcome() -> Outcome:
    outcome = Outcome("x")
    for line in PRINTED.splitlines():
        outcome.read(line.rstrip())
    return outcome


def test_outcome_is_read_from_what_a_suite_prints() -> None:
    outcome = _outcome()
    assert tuple(outcome.failed) == FAILED
    assert outcome.failed["0081_admin"] == "(19s) Expected NO_ERROR, not 40: INVALID_CONFIG"
    assert (outcome.passed, outcome.skipped) == (70, {"0092_mixed_msgver"})
    assert outcome.is_complete


def test_failures_that_are_all_named_are_no_problem() -> None:
    expected = Expected(fails={FAILED[0]: "", FAILED[1]: ""}, may_fail={FAILED[2]: ""})
    assert _outcome().problems(expected, is_whole=True) == []


def test_a_failure_that_is_not_named_is_a_problem() -> None:
    expected = Expected(fails={FAILED[0]: "", FAILED[1]: ""})
    (problem,) = _outcome().problems(expected, is_whole=True)
    assert FAILED[2] in problem


def test_a_named_failure_that_passes_is_a_problem_of_a_whole_run_only() -> None:
    fails = dict.fromkeys((*FAILED, "0001_multiobj"), "")
    (problem,) = _outcome().problems(Expected(fails), is_whole=True)
    assert "0001_multiobj" in problem
    assert _outcome().problems(Expected(fails), is_whole=False) == []


def test_what_may_fail_may_pass() -> None:
    expected = Expected(dict.fromkeys(FAILED, ""), {"0118_commit_rebalance": ""})
    assert _outcome().problems(expected, is_whole=True) == []


def test_a_suite_that_breaks_down_is_a_problem() -> None:
    (problem,) = Outcome("x").problems(Expected(fails={"a": ""}), is_whole=True)
    assert "did not say" in problem


def test_every_failure_on_the_lists_has_a_reason() -> None:
    lists = load_expected()
    assert set(lists) == set(SUITES)
    for expected in lists.values():
        assert all((expected.fails | expected.may_fail).values())
        assert not expected.fails.keys() & expected.may_fail.keys()
