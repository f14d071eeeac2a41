"""What `ring_attention` sends in a step is what its spec declares, and its weights are those of more ranks too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready, train
from tests.workloads.training.watched_steps import watch_step
from workloads.context_parallel.ring_attention import RingTrainer
from workloads.context_parallel.spec import RingAttentionSpec
from workloads.cost_models.communication import recorded_bytes
from workloads.protocols import CountsPairs
from workloads.spec import LIMITS, OptionValue, Precision


def sent_in_a_step(setup: SmallSetup) -> dict[str, int]:
    """Bytes by collective: of the ring by its own count, of all else by the Flight Recorder."""
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    step = watch_step(ready)
    assert isinstance(ready.workload, RingTrainer)
    assert not step.payload_bytes.keys() & ready.workload.payload_bytes().keys()
    return {**step.payload_bytes, **ready.workload.payload_bytes()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layout": "plain"},
        {"accumulate": 2},
        {"causal": False, "overlap": False},
        {"checkpoint": "full"},
        {"checkpoint": "selective", "accumulate": 2},
        {"sharded": True, "accumulate": 2},
    ],
    ids=str,
)
def test_ranks_send_the_bytes_that_the_spec_declares(
    options: Mapping[str, OptionValue], precision: Precision, on_ranks: OnRanks
) -> None:
    setup = small_setup("ring_attention", ranks=2, precision=precision, options=options)
    declared = recorded_bytes(RingAttentionSpec().transfers(setup), "gloo")
    assert on_ranks(2, sent_in_a_step, setup) == [declared, declared]


def attended_in_a_step(setup: SmallSetup) -> int:
    """Pairs by the workload's own count."""
    ready = make_ready(setup)
    for _ in range(2):
        ready.step()
    assert isinstance(ready.workload, CountsPairs)
    return ready.workload.attention_pairs()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layout": "plain"},
        {"causal": False},
        {"accumulate": 2},
        {"checkpoint": "full"},
        {"checkpoint": "selective"},
    ],
    ids=str,
)
def test_ranks_attend_the_pairs_that_the_spec_declares(options: Mapping[str, OptionValue], on_ranks: OnRanks) -> None:
    setup = small_setup("ring_attention", ranks=2, options=options)
    assert tuple(on_ranks(2, attended_in_a_step, setup)) == RingAttentionSpec().attention_pairs(setup)


@pytest.mark.parametrize("layout", ["plain", "zigzag"])
def test_four_ranks_train_as_one_does(layout: str, on_ranks: OnRanks) -> None:
    goals: dict[str, OptionValue] = {"clip": 0.0, "learning_rate": 1e-4}
    setup = small_setup("ring_attention", ranks=4, options={**goals, "layout": layout})
    ((expected, _),) = on_ranks(1, train, small_setup(options=goals), 2)
    records = on_ranks(4, train, setup, 2)
    losses = [steps[0].loss for steps in records]
    assert expected.loss is not None
    assert sum(loss for loss in losses if loss is not None) / 4 == pytest.approx(expected.loss, rel=LIMITS["fp32"])
    for first, _ in records:
        for name, gradient in first.gradients.items():
            truth = expected.gradients[name]
            assert ((gradient - truth).norm() / truth.norm()).item() <= LIMITS["fp32"], name


def test_without_a_mask_the_loss_is_another(on_ranks: OnRanks) -> None:
    causal, full = (
        on_ranks(2, train, small_setup("ring_attention", ranks=2, options={"causal": is_causal}), 1)[0][0].loss
        for is_causal in (True, False)
    )
    assert causal != full
