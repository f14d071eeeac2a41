"""A run of a CPU rank on a node of fake GPUs: its agent records the GPUs, of which one is lost meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.store.run_dir import machine_of
from collectors.metrics.gpu import GPU_POWER_WATTS, GPU_STATE
from collectors.metrics.gpu_health import GPU_NVLINK_BYTES
from collectors.metrics.metric import Sample
from collectors.sample_log import NodeState, read
from tests.support.nvml.library import fake_node
from tests.support.nvml.scenes import B200, H100, LOST, node_of, uuid

pytestmark = pytest.mark.slow
LOSING, BLACKWELL = 1, 2
WORDS = "run single --device cpu --ranks 1 --trials 1 --warm-up 1 --steps 100000 --trace-steps 0 --port 0 --note fake"


def _samples_where(runs: Path, is_so: Callable[[list[Sample]], bool]) -> tuple[Path, list[Sample]]:
    """Wait until the newest beat of the run's node is so; return the run's folder and that beat."""
    until = time.monotonic() + 180
    while time.monotonic() < until:
        for path in runs.glob("*/node0.jsonl"):
            state = NodeState()
            for record in read(path).records:
                state.take(record)
            if is_so(state.samples):
                return path.parent, state.samples
        time.sleep(0.2)
    pytest.fail(f"it never became so in {list(runs.glob('*/*'))}")


def _of(samples: list[Sample], metric: str, gpu: int) -> list[Sample]:
    return [sample for sample in samples if sample.metric == metric and sample.labels["gpu"] == str(gpu)]


def _state(samples: list[Sample], gpu: int) -> str | None:
    return next((sample.labels["state"] for sample in _of(samples, GPU_STATE.name, gpu)), None)


def test_the_agent_records_the_nodes_gpus_and_the_loss_of_one(nvml_library: Path, tmp_path: Path) -> None:
    scene, runs = node_of(H100, H100, B200), tmp_path / "runs"
    node = fake_node(tmp_path, nvml_library, scene)
    words = [*WORDS.split(), "--runs", str(runs), "--store", f"sqlite:///{tmp_path}/history.sqlite"]
    errors = tmp_path / "errors"
    with errors.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench", *words],
            env=node.environment(),
            stdout=subprocess.DEVNULL,
            stderr=written,
        )
    try:
        folder, before = _samples_where(runs, lambda samples: _state(samples, LOSING) == "answering")
        node.show({**scene, f"{LOSING}.All": LOST})
        _, after = _samples_where(runs, lambda samples: _state(samples, LOSING) == "lost")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)
    assert process.returncode == 130, errors.read_text()
    assert [(gpu.name, gpu.uuid) for gpu in machine_of(folder).gpus] == [
        ("NVIDIA H100 80GB HBM3", uuid(0)),
        ("NVIDIA H100 80GB HBM3", uuid(1)),
        ("NVIDIA B200", uuid(2)),
    ]
    assert [sample.value for sample in _of(before, GPU_POWER_WATTS.name, LOSING)] == [612.345]
    assert _of(after, GPU_POWER_WATTS.name, LOSING) == []
    sent, received = _of(after, GPU_NVLINK_BYTES.name, BLACKWELL)
    assert (sent.value, received.value) == (36e9, 18e9)
