"""The order in which a rank takes its GPU, meets the others and leaves, on a GPU that is not there."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.rank.distributed import NoDevice, TrialLog, give_up, gpu_uuid, joined, stay_on_device, take_device
from bench.rank.gpu_of_rank import RankGpu
from bench.rank.messages import GROUPS_MADE, RankOrder, Store
from collectors.sample_log import SampleLog
from tests.bench.made.examples import make_case
from tests.support.fake_cuda import UUIDS, FakeCuda, FakeGroups


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))


def log(folder: Path) -> TrialLog:
    return TrialLog(SampleLog(folder / "rank1.jsonl"), trial=0)


def make_order(folder: Path, store: TCPStore | None = None, *, rank: int = 1, **of_case: object) -> RankOrder:
    settings: dict[str, object] = {"device": "cuda", "backend": "nccl", **of_case}
    return RankOrder(
        run="r",
        trial=0,
        rank=rank,
        local_rank=rank,
        case=make_case(**settings),  # type: ignore[arg-type]
        folder=str(folder),
        store="" if store is None else Store(host="127.0.0.1", port=store.port, prefix="trial0"),
        store_timeout_s=30.0,
        collective_timeout_s=30.0,
    )


def test_a_rank_works_on_its_own_gpu_and_leaves_when_all_devices_are_done(tmp_path: Path, store: TCPStore) -> None:
    cuda = FakeCuda()
    with joined(
        make_order(tmp_path, store),
        log(tmp_path),
        before_meeting=lambda device: cuda.calls.append(f"profiler of {device}"),
        cuda=cuda,
        groups=FakeGroups(cuda),
    ) as membership:
        cuda.calls.append("work")
    assert membership.device == torch.device("cuda", 1)
    assert cuda.calls == [
        "set_device 1",
        "profiler of cuda:1",
        "get_device_properties of cuda:1 at current 1",
        "init_process_group nccl on cuda:1",
        "work",
        # Its own device first: what fails there is told as this rank's failure.
        "synchronize cuda:1",
        "barrier",
        "synchronize cuda:1",
        "set_device 1",
        "destroy_process_group on 1",
    ]


def test_a_rank_that_does_not_see_where_the_others_meet_says_so_at_once(tmp_path: Path) -> None:
    order = structs.replace(make_order(tmp_path, device="cpu", backend="gloo"), store=str(tmp_path / "gone" / "trial0"))
    with (
        pytest.raises(RuntimeError, match=r"does not see .*gone, where the ranks of one machine meet"),
        joined(order, log(tmp_path)),
    ):
        pass


def test_a_rank_that_fails_waits_for_nobody(tmp_path: Path, store: TCPStore) -> None:
    cuda = FakeCuda()
    with (
        pytest.raises(ZeroDivisionError),
        joined(make_order(tmp_path, store), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)),
    ):
        raise ZeroDivisionError
    assert cuda.calls == [
        "set_device 1",
        "get_device_properties of cuda:1 at current 1",
        "init_process_group nccl on cuda:1",
    ]


def test_what_fails_on_the_device_at_last_is_the_ranks_own_failure(tmp_path: Path, store: TCPStore) -> None:
    cuda = FakeCuda(error=RuntimeError("an illegal memory access was encountered"))
    with (
        pytest.raises(RuntimeError, match="illegal memory access"),
        joined(make_order(tmp_path, store), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)),
    ):
        pass
    assert "barrier" not in cuda.calls


def test_a_rank_leaves_though_its_communicators_do_not_end(
    tmp_path: Path, store: TCPStore, capfd: pytest.CaptureFixture[str]
) -> None:
    cuda, hangs = FakeCuda(), threading.Event()
    with joined(
        make_order(tmp_path, store), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda, hangs=hangs), destroy_s=0.05
    ):
        pass
    hangs.set()
    assert "rank 1: its communicators were not destroyed within 0.05 s" in capfd.readouterr().out


def test_ranks_that_share_a_gpu_by_gloo_wait_for_each_other_and_keep_their_group(
    tmp_path: Path, store: TCPStore
) -> None:
    cuda = FakeCuda(count=1)
    with joined(make_order(tmp_path, store, backend="gloo"), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)):
        pass
    assert cuda.calls == [
        "set_device 0",
        "init_process_group gloo on None",
        "synchronize cuda:0",
        "barrier",
        "synchronize cuda:0",
    ]


def test_a_rank_on_the_cpu_asks_nothing_of_a_gpu(tmp_path: Path, store: TCPStore) -> None:
    cuda = FakeCuda()
    with joined(
        make_order(tmp_path, store, device="cpu", backend="gloo"), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)
    ):
        pass
    assert cuda.calls == ["init_process_group gloo on None"]


def test_the_gpu_is_the_current_one_before_it_is_asked_for_its_number(tmp_path: Path) -> None:
    cuda = FakeCuda()
    assert gpu_uuid(make_order(tmp_path), cuda) == UUIDS[1]
    assert cuda.calls == ["set_device 1", "get_device_properties of cuda:1 at current 1"]


def test_a_rank_that_sees_no_gpu_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoDevice, match="CUDA shows rank 1 no GPU, although NVML showed GPUs"):
        take_device(make_order(tmp_path), FakeCuda(count=0))
    assert gpu_uuid(make_order(tmp_path), FakeCuda(count=0)) is None


def test_cuda_that_shows_no_gpu_because_it_does_not_start_says_why(tmp_path: Path) -> None:
    said = "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver"
    with pytest.raises(RuntimeError, match="driver on your system is too old"):
        take_device(make_order(tmp_path), FakeCuda(count=0, broken=RuntimeError(said)))


def test_ranks_do_not_share_a_gpu_on_nccl_where_cuda_shows_fewer_than_the_runner_saw(
    tmp_path: Path, store: TCPStore
) -> None:
    cuda = FakeCuda(count=1)
    with joined(make_order(tmp_path, store, rank=0), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)):
        pass
    cuda = FakeCuda(count=1)
    words = rf"CUDA shows rank 1 1 GPU, and another rank has GPU {UUIDS[0]}, but NCCL needs one for each rank"
    with (
        pytest.raises(NoDevice, match=words),
        joined(make_order(tmp_path, store), log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)),
    ):
        pass
    assert not any(call.startswith("init_process_group") for call in cuda.calls)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_that_sees_its_own_gpu_only_takes_it_as_number_0_whatever_its_place(
    rank: int, tmp_path: Path, store: TCPStore
) -> None:
    """As a task of `srun --ntasks-per-node=4 --gpus-per-task=1`, whose GPU no other rank has."""
    cuda = FakeCuda(count=1, uuids=UUIDS[rank : rank + 1])
    order = make_order(tmp_path, store, rank=rank, ranks=4)
    with joined(order, log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)) as membership:
        assert membership.device == torch.device("cuda", 0)
    assert gpu_uuid(order, cuda) == UUIDS[rank]


def test_a_thread_of_such_a_rank_gets_the_same_gpu(tmp_path: Path) -> None:
    cuda = FakeCuda(count=1)
    stay_on_device(make_order(tmp_path, rank=3, ranks=4), cuda)
    assert cuda.calls == ["set_device 0"]


def test_a_rank_on_a_mig_instance_has_the_uuid_of_the_instance_though_cuda_gives_that_of_its_gpu(
    tmp_path: Path,
) -> None:
    instance = RankGpu(uuid="MIG-7c1a0f4b-6d0e-4a5b-9c3d-2f1e0d9c8b70")
    order = structs.replace(make_order(tmp_path, rank=0), gpu=instance)
    assert gpu_uuid(order, FakeCuda(count=1)) == "7c1a0f4b-6d0e-4a5b-9c3d-2f1e0d9c8b70"


def test_a_failed_rank_aborts_its_communicators_from_a_thread_that_has_its_gpu(tmp_path: Path, store: TCPStore) -> None:
    cuda = FakeCuda()
    groups, order = FakeGroups(cuda), make_order(tmp_path, store)
    with pytest.raises(ZeroDivisionError), joined(order, log(tmp_path), cuda=cuda, groups=groups):
        raise ZeroDivisionError
    give_up(order, cuda=cuda, groups=groups, abort=lambda: cuda.calls.append(f"abort on {cuda.current_device()}"))
    assert cuda.calls[-2:] == ["set_device 1", "abort on 1"]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_rank_that_failed_before_it_met_the_others_has_nothing_to_abort(tmp_path: Path, backend: str) -> None:
    cuda = FakeCuda()
    groups = FakeGroups(cuda)
    give_up(make_order(tmp_path, backend=backend), cuda=cuda, groups=groups, abort=lambda: cuda.calls.append("abort"))
    assert cuda.calls == []


@pytest.mark.parametrize(("backend", "expected"), [("gloo", [1, 1, 1]), ("nccl", [0, 1, 1])])
def test_a_rank_leaves_the_store_once_when_it_needs_it_no_longer(
    backend: str, expected: list[int], tmp_path: Path, store: TCPStore
) -> None:
    """gloo connects when groups are made, NCCL at the first message."""
    cuda = FakeCuda()
    order = make_order(tmp_path, store, backend=backend)
    counted = []
    with joined(order, log(tmp_path), cuda=cuda, groups=FakeGroups(cuda)) as membership:
        for has_communicated in (False, True, True):
            membership.leave_store(has_communicated=has_communicated)
            counted.append(store.add(f"trial0/{GROUPS_MADE}", 0))
    assert counted == expected
