"""Runs find the files of the GPUs that their ranks are shown on."""

from __future__ import annotations

from collectors.dcgm import runs_by_file
from collectors.metrics.agent import RANK_INFO
from collectors.metrics.gpu import RANK_GPU
from collectors.metrics.metric import Sample


def _on(run: str, gpu: str, part: str = "") -> Sample:
    return RANK_GPU.at(1, run=run, gpu=gpu, slice=part)


def test_each_gpu_has_the_runs_of_the_ranks_that_compute_there() -> None:
    shown = [_on("run-a", "0"), _on("run-a", "1"), _on("run-b", "1")]
    assert runs_by_file(shown) == {"0": {"run-a"}, "1": {"run-a", "run-b"}}


def test_compute_instances_share_the_file_of_their_gpu_instance() -> None:
    shown = [_on("run-a", "7", "1/0"), _on("run-b", "7", "1/1"), _on("run-c", "7", "2/0")]
    assert runs_by_file(shown) == {"7.1": {"run-a", "run-b"}, "7.2": {"run-c"}}


def test_ranks_without_a_gpu_are_nowhere() -> None:
    assert runs_by_file([RANK_INFO.at(1, run="run-a", host="node0")]) == {}
