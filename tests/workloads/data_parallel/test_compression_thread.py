"""The thread averages buckets in order and beside backward, and its errors come to light in the step."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, current_thread

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks import LIMIT_S, OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import no_phase
from workloads.core.data import Batches
from workloads.core.mesh import make_group
from workloads.core.trainer import Trainer, make_model
from workloads.data_parallel.compression import Bucket, CompressionThread, hook

CPU = torch.device("cpu")
PATIENCE_S = 60.0


class FakeScheme:
    """Averages nothing, and remembers which buckets came, in which thread and whether gradients were recorded."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.indices: list[int] = []
        self.threads: set[str] = set()
        self.is_recording = False
        self._fails_at = fails_at

    def average(self, bucket: Bucket) -> None:
        """See `Scheme.average`."""
        self.indices.append(bucket.index)
        self.threads.add(current_thread().name)
        self.is_recording |= torch.is_grad_enabled()
        if bucket.index == self._fails_at:
            raise ArithmeticError(f"bucket {bucket.index} does not add up")


class FakePatientScheme:
    """Ends its first bucket when the last gradient of backward is there."""

    def __init__(self) -> None:
        self.last_gradient = Event()

    def average(self, bucket: Bucket) -> None:
        """See `Scheme.average`."""
        if not self.last_gradient.wait(PATIENCE_S):
            raise TimeoutError("backward did not go on beside the first bucket")


class FakeLostBucket(Bucket):
    """Can be averaged by a scheme that does not look at it, and has no gradients to hand over."""

    def __init__(self) -> None:
        object.__setattr__(self, "index", 0)

    @property
    def flat(self) -> Tensor:
        raise MemoryError("nothing is left of the bucket")


def make_bucket(index: int) -> Bucket:
    return Bucket(index=index, flat=torch.full((1,), float(index)), weights=(torch.zeros(1),))


def make_replica(setup: SmallSetup, thread: CompressionThread) -> Trainer:
    replica = DistributedDataParallel(make_model(setup), bucket_cap_mb=0.05, gradient_as_bucket_view=True)
    replica.register_comm_hook(thread, hook)
    return Trainer(setup, replica, no_phase, after_backward=thread.check)


def test_buckets_are_averaged_in_the_order_in_which_they_are_handed_in() -> None:
    scheme = FakeScheme()
    thread = CompressionThread(scheme, CPU)
    futures = [thread.hand_in(make_bucket(index)) for index in range(20)]
    assert [future.wait().item() for future in futures] == list(range(20))
    thread.check()
    assert scheme.indices == list(range(20))
    assert scheme.threads == {"compression"}
    assert not scheme.is_recording


def test_after_an_error_all_futures_are_through_and_nothing_more_is_averaged() -> None:
    scheme = FakeScheme(fails_at=2)
    thread = CompressionThread(scheme, CPU)
    for future in [thread.hand_in(make_bucket(index)) for index in range(5)]:
        future.wait()
    assert scheme.indices == [0, 1, 2]
    with pytest.raises(ArithmeticError, match="bucket 2 does not add up"):
        thread.check()


def test_averages_that_cannot_be_handed_over_fail_their_future_and_the_step() -> None:
    thread = CompressionThread(FakeScheme(), CPU)
    future = thread.hand_in(FakeLostBucket())
    with pytest.raises(MemoryError, match="nothing is left"):
        future.wait()
    with pytest.raises(MemoryError, match="nothing is left"):
        thread.check()


def step_with_a_failing_scheme(setup: SmallSetup) -> str:
    trainer = make_replica(setup, CompressionThread(FakeScheme(fails_at=0), CPU))
    tokens_bs = next(Batches(setup, data_rank=0, data_ranks=1))
    with pytest.raises(ArithmeticError) as caught:
        trainer.step(tokens_bs)
    return str(caught.value)


def test_an_error_in_the_thread_is_raised_by_the_step(on_ranks: OnRanks) -> None:
    assert on_ranks(1, step_with_a_failing_scheme, small_setup("ddp")) == ["bucket 0 does not add up"]


def steps_beside_a_patient_scheme(setup: SmallSetup) -> int:
    scheme = FakePatientScheme()
    trainer = make_replica(setup, CompressionThread(scheme, CPU))
    batches = Batches(setup, data_rank=0, data_ranks=1)
    scheme.last_gradient.set()  # The first step has one bucket, which is ready when all gradients are.
    trainer.step(next(batches))
    scheme.last_gradient.clear()
    embedding = trainer.model.get_parameter("module.embedding.weight")

    def tell(gradient: Tensor) -> None:
        scheme.last_gradient.set()

    embedding.register_hook(tell)  # type: ignore[no-untyped-call]
    trainer.step(next(batches))
    return len(list(trainer.model.parameters()))


def test_backward_goes_on_while_a_bucket_is_averaged(on_ranks: OnRanks) -> None:
    assert on_ranks(1, steps_beside_a_patient_scheme, small_setup("ddp")) == [39]


def timeouts_of_groups() -> tuple[timedelta, int, bool]:
    world = dist.group.WORLD
    assert world is not None
    made = make_group(world, CPU)
    return made._get_backend(CPU).options._timeout, made.size(), made is world


def test_the_threads_group_has_the_ranks_and_the_timeout_of_its_parent(on_ranks: OnRanks) -> None:
    assert on_ranks(2, timeouts_of_groups) == [(timedelta(seconds=LIMIT_S), 2, False)] * 2
