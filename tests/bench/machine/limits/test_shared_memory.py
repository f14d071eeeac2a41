"""/dev/shm against what NCCL and data loaders need, on a real tmpfs of 64 MB."""

from __future__ import annotations

from pathlib import Path

from bench.machine.limits.demand import Demand, demand_of
from bench.machine.limits.shared_memory import NCCL_CONNECTION_BYTES, NCCL_POOL_BYTES, nccl_bytes, read
from tests.bench.machine.limits.namespaces import SMALL_SHM, run_with_mounts
from tests.bench.made.examples import small_case

EIGHT = Demand(ranks=8, world=8, is_on_gpus=True, uses_nccl=True)
JUDGE = """
from bench.machine.limits.demand import demand_of_gpus
from bench.machine.limits.registry import too_small
print(*too_small(demand_of_gpus({gpus})), sep="\\n")
"""


def test_the_default_of_docker_is_too_small_for_nccl_on_eight_gpus() -> None:
    done = run_with_mounts(SMALL_SHM, "-c", JUDGE.format(gpus=8))
    (line,) = (line for line in done.stdout.splitlines() if "/dev/shm:" in line)
    assert line.startswith("/dev/shm: 64 MiB, 64 MiB free, but needed: 546 MiB for 8 ranks (546 MiB by NCCL); ")
    assert "docker run --shm-size=1g" in line
    assert "emptyDir of medium Memory" in line


def test_two_ranks_on_a_cpu_need_little_of_it() -> None:
    done = run_with_mounts(SMALL_SHM, "-c", JUDGE.format(gpus=0))
    assert (done.returncode, "/dev/shm" in done.stdout) == (0, False), done.stderr


def test_memory_that_others_hold_is_not_free() -> None:
    mounts = f"{SMALL_SHM}\nhead -c 60m /dev/zero > /dev/shm/held"
    done = run_with_mounts(mounts, "-c", JUDGE.format(gpus=1))
    assert "/dev/shm" not in done.stdout  # One GPU has no peer to share memory with.
    done = run_with_mounts(mounts, "-c", JUDGE.format(gpus=2))
    assert "/dev/shm: 64 MiB, 4 MiB free, but needed: 137 MiB for 2 ranks" in done.stdout


def test_a_dry_run_warns_of_loaders_whose_batches_do_not_fit() -> None:
    words = ("run", "ddp", "--ranks", "2", "--device", "cpu", "--batch", "512", "--option", "workers=100", "--dry-run")
    done = run_with_mounts(SMALL_SHM, "-m", "bench", *words, "--sequence", "128")
    assert done.returncode == 0, done.stderr
    # 512 sequences of 129 tokens of 8 B, two for each of 100 workers, and those in use.
    assert "/dev/shm: 64 MiB, 64 MiB free, but needed: 101 MiB for 2 ranks (101 MiB by data loaders)" in done.stderr


def test_a_node_reports_a_small_one_to_the_check_before_a_suite() -> None:
    code = """
from pathlib import Path
from bench.machine.gpus import Gpu
from bench.machine.node_now import read_now
from tests.bench.made.recorded_nvml import RecordedNvml
gpus = [Gpu(index=index, name="H200", uuid=f"GPU-{index}", memory_bytes=None) for index in range(2)]
print(*read_now(gpus, Path("/tmp"), nvml=RecordedNvml(is_without_library=True)).small_limits, sep="\\n")
"""
    done = run_with_mounts(SMALL_SHM, "-c", code)
    assert done.stdout.startswith("/dev/shm: 64 MiB, 64 MiB free, but needed: 137 MiB for 2 ranks"), done.stderr


def test_ranks_without_a_peer_and_gloo_need_none_for_connections() -> None:
    assert nccl_bytes(Demand(ranks=1, world=1, is_on_gpus=True, uses_nccl=True)) == 0
    assert nccl_bytes(Demand(ranks=8, world=8, is_on_gpus=False, uses_nccl=False)) == 0
    assert nccl_bytes(EIGHT) == 8 * (NCCL_POOL_BYTES + 4 * NCCL_CONNECTION_BYTES)


def test_a_connection_has_the_size_that_nccl_prints() -> None:
    """LL: 8 lines of 16 B for 512 threads, LL128: 120 words for 640 threads, each in 8 steps; Simple: 4 MiB."""
    buffers = 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + (4 << 20)
    assert buffers + 4096 + 4 == NCCL_CONNECTION_BYTES


def test_a_node_without_shared_memory_is_too_small_only_for_those_who_need_it(tmp_path: Path) -> None:
    assert not read(EIGHT, {}, tmp_path).is_enough
    assert read(Demand(ranks=2, world=2, is_on_gpus=False, uses_nccl=False), {}, tmp_path).is_enough


def test_loaders_of_a_node_hold_its_share_of_the_batch() -> None:
    case = small_case(options={"workers": 2}, ranks=4, nodes=2)
    batch_bytes = case.shape.batch * (case.shape.sequence + 1) * 8
    assert demand_of(case).loader_bytes == batch_bytes // 2 * 5
    assert demand_of(small_case(options={"workers": 0})).loader_bytes == 0
