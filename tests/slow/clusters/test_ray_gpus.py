"""GPUs that a real Ray gives to actors: a rank, and an agent, that sees one GPU as number 0 takes that one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.errors import FINE
from bench.store.run_dir import machine_of
from collectors.sample_log import Opened, read
from tests.bench.made.examples import small_case
from tests.slow.clusters.nights import defaults
from tests.slow.clusters.ray_cluster import GPUS, RayCluster, RayNight, processes_of, run_ray
from tests.support.nvml.library import FakeNode, build, fake_node
from tests.support.nvml.scenes import H100, node_of, uuid

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

CPUS = sorted(os.sched_getaffinity(0))
NEAR = (CPUS[0], CPUS[-1])
"""A CPU near each GPU of the node."""
RANKS = """
import json, os, subprocess, sys
import ray

class Rank:
    def run(self, rank, ranks, words, variables):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        done = subprocess.run(
            words, env=own | variables | {name: str(value) for name, value in place.items()},
            capture_output=True, text=True,
        )
        return os.environ["CUDA_VISIBLE_DEVICES"], done.stderr

address, ranks, words, variables = json.loads(sys.argv[1])
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
actors = [ray.remote(Rank).options(num_gpus=1, num_cpus=1).remote() for _ in range(ranks)]
print(json.dumps(ray.get([actor.run.remote(rank, ranks, words, variables) for rank, actor in enumerate(actors)])))
"""
"""Starts each rank in an actor that has one GPU, with torchrun's variables; prints the GPU that Ray gave to each."""
HOLD = """
import sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

class Holder:
    def gpu(self):
        return ray.get_gpu_ids()[0]

holder = ray.remote(Holder).options(num_gpus=1, num_cpus=0).remote()
print(ray.get(holder.gpu.remote()), flush=True)
sys.stdin.read()
"""
"""Another job that has one GPU until its input ends; prints which."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head without GPUs, and a node with two."""
    with run_ray(2) as cluster:
        yield cluster
    assert processes_of(cluster.folder) == []


def _node(folder: Path) -> FakeNode:
    near = {f"{gpu}.CpuAffinity": str(cpu) for gpu, cpu in enumerate(NEAR)}
    return fake_node(folder / "nvml", build(folder / "library"), {**node_of(*[H100] * GPUS), **near})


def _paths(node: FakeNode) -> Mapping[str, str]:
    return {"LD_LIBRARY_PATH": str(node.library), "NVML_SCENE": str(node.scene_file)}


def test_each_rank_in_an_actor_with_one_gpu_is_bound_to_the_cores_of_that_gpu(
    cluster: RayCluster, short_path: Path
) -> None:
    """CUDA shows it as number 0, whatever the rank's place. The ranks end where they start CUDA, which torch lacks."""
    case = replace(small_case("ddp", GPUS), device="cuda", bind=True)
    (short_path / "case.json").write_bytes(msgspec.json.encode([{"case": case}]))
    words = [sys.executable, "-P", "-m", "bench.runner.torchrun", f"{short_path}/case.json"]
    words += ["--folder", f"{short_path}/run"]
    order = json.dumps([cluster.address, GPUS, words, _paths(_node(short_path))])
    done = subprocess.run(
        [sys.executable, "-c", RANKS, order], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout.splitlines()[-1])
    assert sorted(gpu for gpu, _ in given) == ["0", "1"]
    for rank, (gpu, said) in enumerate(given):
        records = read(short_path / f"run/rank{rank}.jsonl").records
        (opened,) = (record for record in records if isinstance(record, Opened))
        assert opened.cpus == str(NEAR[int(gpu)]), said


def test_an_agent_that_gets_one_gpu_beside_another_job_has_the_free_one(cluster: RayCluster, short_path: Path) -> None:
    node, suite = _node(short_path), f"{defaults(trials=1)}[case.single]\nranks = 1\n"
    exports = "".join(f"export {name}={value}\\n" for name, value in _paths(node).items())
    night = RayNight(short_path, cluster.address, suite, f'cpus = 1\ngpus = 1\nsetup = "{exports}"\n')
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, cluster.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        held = int(holder.stdout.readline())
        code, cases, messages = night.run("--nodes=1")
    finally:
        holder.communicate()
    assert code == FINE, messages
    gpus = machine_of(Path(cases["single"]["summary"]["folder"])).gpus
    free = 1 - held
    assert [(gpu.index, gpu.uuid, gpu.near_cpus) for gpu in gpus] == [(free, uuid(free), str(NEAR[free]))]
    night.assert_nothing_is_left()
