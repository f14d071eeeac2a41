"""dcgm-exporter is told of the runs in a thread of its own, and again after what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from contextlib import closing
from pathlib import Path

import pytest

from collectors.dcgm import JobMapping, JobMappingWriter
from collectors.metrics.gpu import RANK_GPU
from collectors.prometheus.exposition import Owned
from tests.collectors.fake_collectors import FakeHang, ended
from tests.waiting import wait_until

RANK = {"rank": "0", "slot": "0"}


def _on(gpu: str, run: str = "8f2c") -> list[Owned]:
    return [(RANK_GPU.at(1, run=run, gpu=gpu, slice=""), RANK)]


def _tell_until(jobs: JobMappingWriter, samples: list[Owned], is_so: Callable[[], bool]) -> None:
    """As an agent does, at each beat."""

    def told() -> bool:
        jobs.tell(samples)
        return is_so()

    wait_until(told)


class FakeMapping(JobMapping):
    """Remembers what it showed. at_show: what else happens, by the number of the call."""

    def __init__(self, at_show: dict[int, Callable[[], None]] | None = None) -> None:
        self.shown: list[Mapping[str, Set[str]]] = []
        self._at_show = at_show or {}

    @property
    def absent(self) -> tuple[str, ...]:
        return ("the folder is full",)

    def show(self, runs: Mapping[str, Set[str]]) -> None:
        self.shown.append(runs)
        self._at_show.get(len(self.shown), lambda: None)()


def test_runs_stand_in_the_files_of_their_gpus_until_they_are_shown_no_more(tmp_path: Path) -> None:
    notices = list[str]()
    with closing(JobMapping(tmp_path)) as mapping, closing(JobMappingWriter(mapping, on_notice=notices.append)) as jobs:
        jobs.tell(_on("3"))
        wait_until((tmp_path / "3").exists)
        assert (tmp_path / "3").read_text() == "8f2c\n"
        _tell_until(jobs, [], lambda: not (tmp_path / "3").exists())
    # On a busy machine an update may take longer than the pause between two calls.
    assert all("its folder is sometimes slow" in notice for notice in notices)


@pytest.mark.timeout(30)
def test_a_folder_that_hangs_keeps_nobody_waiting_and_is_told_the_newest_when_it_answers() -> None:
    hang, notices = FakeHang(), list[str]()
    mapping = FakeMapping({1: hang})
    jobs = JobMappingWriter(mapping, on_notice=notices.append)
    jobs.tell(_on("0"))
    hang.has_begun.wait()
    for gpu in ("1", "2"):
        jobs.tell(_on(gpu))
    assert set(notices) == {"job mapping: its folder is sometimes slow, so dcgm-exporter learns of runs late"}
    hang.let_go()
    _tell_until(jobs, _on("2"), lambda: len(mapping.shown) > 1)
    jobs.close()
    ended("job-mapping")
    assert mapping.shown[1] == {"2": {"8f2c"}}


def test_what_went_wrong_is_said_and_tried_again() -> None:
    def refuse() -> None:
        raise ValueError("no such file")

    notices = list[str]()
    mapping = FakeMapping({1: refuse})
    with closing(JobMappingWriter(mapping, on_notice=notices.append)) as jobs:
        _tell_until(jobs, _on("0"), lambda: len(mapping.shown) > 1)
    assert "job mapping: no such file; dcgm-exporter does not learn of the runs" in notices
    assert "the folder is full" in notices
