"""A case holds what was measured: defaults that suit the link as their values, and the version of its device."""

from __future__ import annotations

import pytest

from bench.case import Case
from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import read_gpus
from bench.session.case_args import CaseArgs, NodeResources, case_of_args
from tests.bench.made.recorded_nvml import RecordedNvml


def ask(probe: str, *options: str, gpus: int = 0) -> Case:
    node = NodeResources(
        cores=2,
        host_bytes=1 << 40,
        gpus=read_gpus(RecordedNvml(names=("A", "B")[:gpus])),
        torch=TorchBuild(version="2.13.0+cu130", cuda="13.0"),
    )
    return case_of_args(CaseArgs(strategy=probe, options=options), 2, node)


@pytest.mark.parametrize(
    ("probe", "key"),
    [
        (
            "collectives",
            '{"backend":"gloo","device":"cpu","model":null,"options":{"collectives":"all","factor":4,'
            '"max_bytes":16777216,"min_bytes":1024},"precision":"fp32","ranks":2,"strategy":"collectives","threads":1,'
            '"version":1}',
        ),
        (
            "all_reduce",
            '{"backend":"gloo","device":"cpu","model":null,"options":{"algorithms":"all","factor":16,'
            '"max_bytes":4194304,"min_bytes":1024},"precision":"fp32","ranks":2,"strategy":"all_reduce","threads":1,'
            '"version":1}',
        ),
    ],
)
def test_a_series_on_gloo_goes_on_that_began_before_sizes_suited_the_link(probe: str, key: str) -> None:
    assert ask(probe).key() == key


@pytest.mark.parametrize(
    ("probe", "options"),
    [
        ("collectives", {"max_bytes": 1 << 30, "factor": 4}),
        ("all_reduce", {"max_bytes": 256 << 20, "factor": 4}),
    ],
)
def test_a_sweep_on_nccl_is_larger_and_a_series_of_its_own(probe: str, options: dict[str, int]) -> None:
    case = ask(probe, gpus=2)
    assert (case.backend, case.version) == ("nccl", 2)
    assert {name: case.options[name] for name in options} == options


def test_a_size_that_is_asked_for_stays() -> None:
    assert ask("collectives", "max_bytes=8589934592", gpus=2).options["max_bytes"] == 1 << 33
