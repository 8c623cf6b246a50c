"""Every transcript and table case of the conformance folder must come out exactly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.run import DEFAULT_FOLDER, run_folder

CASES = {"interaction": 20, "quorum": 127, "confchange": 58}


def test_core_given_every_case_matches_the_oracle() -> None:
    """All transcripts and tables: nothing differs, and none is missing."""
    folder = Path(os.environ.get("RAFT_CONFORMANCE", DEFAULT_FOLDER))
    if not folder.is_dir():
        pytest.fail(
            f"no conformance data in {folder}; set RAFT_CONFORMANCE to the folder that holds "
            + ", ".join(CASES)
        )
    outcomes = list(run_folder(folder))
    failed = [outcome for outcome in outcomes if outcome.differences]
    report = "\n".join("\n".join([outcome.name, *outcome.differences]) for outcome in failed)
    assert not failed, f"{len(failed)} of {len(outcomes)} differ\n{report}"
    assert len(outcomes) >= sum(CASES.values())
