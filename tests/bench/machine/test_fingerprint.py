"""The fingerprint of a machine: what changes it, and what does not."""

from dataclasses import replace
from typing import Any

import pytest

from bench.machine.fingerprint import fingerprint
from bench.machine.gpus import Gpu
from bench.machine.machine import Machine
from tests.bench.made.examples import make_machine

MACHINE = replace(make_machine(), gpus=(Gpu(index=0, name="NVIDIA H100", uuid="GPU-1", memory_bytes=1 << 36),))


def _changed(**changes: Any) -> Machine:
    return replace(MACHINE, **changes)


@pytest.mark.parametrize(
    "same",
    [
        _changed(hostname="node7"),
        _changed(commit="0" * 40, is_dirty=True),
        _changed(environment={**MACHINE.environment, "SLURM_JOB_ID": "17"}),
        _changed(gpus=(Gpu(index=3, name="NVIDIA H100", uuid="GPU-2", memory_bytes=1 << 36, near_cpus="32-63"),)),
    ],
    ids=["another node", "another commit", "another job", "another GPU of the kind"],
)
def test_what_only_tells_machines_apart_does_not_change_it(same: Machine) -> None:
    assert fingerprint(same) == fingerprint(MACHINE)


@pytest.mark.parametrize(
    "other",
    [
        _changed(driver_version="550.1"),
        _changed(kernel="6.2"),
        _changed(torch_version="2.12.0"),
        _changed(environment={**MACHINE.environment, "NCCL_ALGO": "Ring"}),
        _changed(gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-1", memory_bytes=1 << 36),)),
        _changed(usable_cores=1),
    ],
    ids=["driver", "kernel", "torch", "variable", "GPU", "cores"],
)
def test_what_may_change_a_measurement_changes_it(other: Machine) -> None:
    assert fingerprint(other) != fingerprint(MACHINE)
