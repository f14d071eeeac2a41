"""A case that this machine cannot run is checked as on a machine that lacks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import Misuse
from bench.session.case_args import NodeResources
from bench.suite.file import read_suite
from bench.suite.plan import PlannedCase, plan_suite
from tests.bench.suite.test_plan import FOUR_GPUS, HERE, FakeHistory
from workloads.spec import Device


def _plan(folder: Path, text: str, node: NodeResources) -> tuple[PlannedCase, ...]:
    path = folder / "night.toml"
    path.write_text(f"schema_version = 1\n{text}\n")
    return plan_suite(read_suite(path), node, FakeHistory()).cases


@pytest.mark.parametrize(
    ("table", "node", "device"),
    [
        ("needs = { memory_bytes = 9e15 }", HERE, "cpu"),
        ("needs = { memory_bytes = 9e15 }", FOUR_GPUS, "cuda"),
        ("needs = { memory_bytes = 9e15 }\ndevice = 'cpu'", FOUR_GPUS, "cpu"),
        ("device = 'cuda'", HERE, "cuda"),
        ("backend = 'nccl'", HERE, "cuda"),
        ("ranks = 8", FOUR_GPUS, "cuda"),
        ("ranks = 8\nthreads = 999\ndevice = 'cpu'", FOUR_GPUS, "cpu"),
    ],
)
def test_elsewhere_a_case_takes_the_device_that_it_names_or_else_this_machine_s(
    tmp_path: Path, table: str, node: NodeResources, device: Device
) -> None:
    (planned,) = _plan(tmp_path, f"[case.ddp]\nbatch = 8\n{table}", node)
    assert planned.refusal is not None
    assert planned.possible is not None
    assert planned.possible.device == device


def test_the_mistake_that_is_named_is_the_one_on_this_machine_s_device(tmp_path: Path) -> None:
    """On the CPU the backend is wrong, and on GPUs the batch is."""
    for node, key in ((HERE, "backend"), (FOUR_GPUS, "batch")):
        with pytest.raises(Misuse, match=rf"night.toml: \[case.ddp\] {key}: "):
            _plan(tmp_path, "[case.ddp]\nranks = 3\nbatch = 8\nbackend = 'nccl'", node)


def test_a_baseline_is_checked_although_this_machine_can_run_neither(tmp_path: Path) -> None:
    baseline = "[case.single]\nranks = 1\nwidth = 64\nneeds = { memory_bytes = 9e15 }"
    text = f"[case.ddp]\nranks = 2\nbaseline = 'single'\n{baseline}"
    for node in (HERE, FOUR_GPUS):
        with pytest.raises(Misuse, match=r"baseline of ddp: baseline .* is another workload: width is 64"):
            _plan(tmp_path, text, node)


def test_a_baseline_on_gpus_of_a_case_that_would_take_the_cpu_here_is_no_mistake_of_the_file(tmp_path: Path) -> None:
    text = "[case.ddp]\nranks = 2\nbaseline = 'single'\n[case.single]\nranks = 1\nbackend = 'nccl'"
    planned = _plan(tmp_path, text, HERE)
    assert [one.refusal is None for one in planned] == [True, False]
    both = _plan(tmp_path, text, FOUR_GPUS)
    assert [one.refusal for one in both] == [None, None]
