"""The plain scripts' ranks are scheduled as ours are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.plain import run_script


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_of_a_plain_script_leads_a_session_as_ours_do(ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # One write, line end included: ranks share the output.
    script.write_text("import os\nos.write(1, b'leads\\n' if os.getsid(0) == os.getpid() else b'follows\\n')\n")
    assert run_script(script, "{}", ranks=ranks, threads=1).split() == ["leads"] * ranks
