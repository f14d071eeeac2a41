"""The time in the run queue, as a made file has it and as this kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.rank.action_clock import SCHEDSTAT, CoreWait

BUSY = "import os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])}); print(1, flush=True)\nwhile True: pass"


def test_the_second_figure_is_the_time_in_the_run_queue(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("100 20 3\n")
    wait = CoreWait(path)
    assert wait.waited_ns() == 20
    path.write_text("200 50 4\n")
    assert wait.waited_ns() == 50
    wait.close()


@pytest.mark.parametrize("text", [None, "", "no number of ours\n"])
def test_where_the_kernel_does_not_tell_it_is_unknown(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    assert CoreWait(path).waited_ns() is None


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel counts no time in the run queue")
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    with subprocess.Popen([sys.executable, "-c", BUSY, str(core)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()  # From here on it is busy.
            os.sched_setaffinity(0, {core})
            wait = CoreWait()
            before_ns = wait.waited_ns()
            until_s = time.monotonic() + 0.1
            while time.monotonic() < until_s:
                pass
            after_ns = wait.waited_ns()
            wait.close()
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()
    assert before_ns is not None
    assert after_ns is not None
    assert after_ns > before_ns
