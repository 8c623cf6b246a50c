"""Every transcript and table case of the conformance folder must match exactly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.run import HOW_TO_GET_IT, PLACES, NoData, data_folder, main, run_folder

CASES = {"interaction": 20, "quorum": 127, "confchange": 58}


def test_core_given_every_case_matches_the_oracle() -> None:
    """All transcripts and tables: nothing differs, and none is missing."""
    folder = data_folder()
    if not folder.is_dir():
        reason = f"no transcripts of etcd's Raft in {folder}: {HOW_TO_GET_IT}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; CI must have them", pytrace=False)
        pytest.skip(reason)
    outcomes = list(run_folder(folder))
    failed = [outcome for outcome in outcomes if outcome.differences]
    report = "\n".join("\n".join([outcome.name, *outcome.differences]) for outcome in failed)
    assert not failed, f"{len(failed)} of {len(outcomes)} differ\n{report}"
    assert len(outcomes) >= sum(CASES.values())


@pytest.mark.parametrize("column", [0, 1], ids=["data alone", "clone of etcd-io/raft"])
def test_folder_in_either_layout_is_run(tmp_path: Path, column: int) -> None:
    """A clone is used in place; one case of each kind represents all."""
    cases = {
        "interaction": "log-level debug\n----\nok\n",
        "quorum": "committed cfg=(1) idx=(3)\n----\n",
        "confchange": "simple\nv1\n----\n",
    }
    for kind, text in cases.items():
        place = tmp_path / PLACES[kind][column]
        place.mkdir(parents=True)
        (place / "case.txt").write_text(text)
    assert [outcome.name.split(":")[0] for outcome in run_folder(tmp_path)] == ["case"] * 3


def test_folder_without_data_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message explains how to get the data; there is no traceback."""
    with pytest.raises(NoData):
        list(run_folder(tmp_path))
    assert main([str(tmp_path)]) == 2
    assert HOW_TO_GET_IT in capsys.readouterr().err
