"""A job of Slurm: which of the nodes that it lists still run something, and how long it has its nodes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest

from bench.engines.cluster import NodeRequest
from bench.engines.slurm.allocation import SlurmAllocation
from bench.errors import InfrastructureFailed

Job = Callable[..., SlurmAllocation]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Makes the allocation of a job that lists nodes in these states, and ends then."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(states: Mapping[str, str], *, end: str = "Unknown", needed: int = 2) -> SlurmAllocation:
        described = "\n".join(f"NodeName={name} CPUTot=1 RealMemory=64 State={told}" for name, told in states.items())
        names = "\n".join(states)
        path = tmp_path / "scontrol"
        path.write_text(f"""#!/bin/sh
case "$*" in
*'show job'*) echo 'JobId=7 JobState=RUNNING NodeList=n EndTime={end}';;
*hostnames*) echo '{names}';;
*'show node '*) echo '{described}';;
esac
""")
        path.chmod(0o755)
        allocation = SlurmAllocation(NodeRequest(nodes=needed))
        allocation.job = "7"
        return allocation

    return make


@pytest.mark.parametrize("state", ["DOWN", "DOWN*", "DOWN*+DRAIN", "ALLOCATED*", "FAIL", "ALLOCATED+NOT_RESPONDING"])
def test_a_node_that_is_gone_is_not_used_though_the_job_still_lists_it(state: str, job: Job) -> None:
    states = {"n0": state, "n1": "ALLOCATED", "n2": "ALLOCATED"}
    assert job(states).nodes() == ("n1", "n2")
    with pytest.raises(InfrastructureFailed, match=r"job 7 has 2 of 3 nodes left: n0 is "):
        job(states, needed=3).nodes()


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED", "ALLOCATED+DRAIN", "DRAINING"])
def test_a_node_that_runs_until_the_job_ends_is_used(state: str, job: Job) -> None:
    assert job({"n0": state, "n1": "ALLOCATED"}).nodes() == ("n0", "n1")


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Moves this process to a time zone."""

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


def _local(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s):%Y-%m-%dT%H:%M:%S}"


@pytest.mark.parametrize("name", ["UTC0", "IST-5:30", "PST8", "LINT-14"])
def test_the_time_left_of_a_job_is_the_same_in_each_time_zone(name: str, job: Job, zone: Callable[[str], None]) -> None:
    zone(name)
    allocation = job({"n0": "ALLOCATED"}, end=_local(time.time() + 7200))
    assert allocation.left_s() == pytest.approx(7200, abs=100)


def test_the_time_left_of_a_job_has_no_more_hours_where_summer_time_begins_before_its_end(
    job: Job, zone: Callable[[str], None]
) -> None:
    soon = time.gmtime(time.time() + 3600)  # The clocks go one hour forward then, and back some months later.
    day, later = soon.tm_yday - 1, (soon.tm_yday + 120) % 365
    zone(f"WIN0SUM,{day}/{soon.tm_hour}:{soon.tm_min}:{soon.tm_sec},{later}/2")
    end_s = time.time() + 3 * 3600
    assert time.localtime(end_s).tm_isdst
    allocation = job({"n0": "ALLOCATED"}, end=_local(end_s))
    assert allocation.left_s() == pytest.approx(3 * 3600, abs=100)


@pytest.mark.parametrize("end", ["Unknown", "NONE", ""])
def test_a_job_without_a_known_end_has_its_nodes_for_as_long_as_it_likes(end: str, job: Job) -> None:
    assert job({"n0": "ALLOCATED"}, end=end).left_s() == math.inf
