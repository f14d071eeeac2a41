"""`checkpoint_every`: which blocks are recomputed, what they keep, what ranks send for it, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from tests.workloads.training.watched_steps import watch_step
from workloads.core.trainer import outline_model
from workloads.core.transformer import Block
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.memory import paper_activation_bytes, recomputed_count
from workloads.cost_models.peak_memory import Prediction
from workloads.protocols import CountsPayload
from workloads.registry import spec_of
from workloads.spec import OptionValue, Precision

Options = Mapping[str, OptionValue]
DEEP = replace(SMALL, layers=6, width=32, kv_heads=2, mlp_width=96, vocabulary=40, sequence=48)
"""Most of it is blocks, so that the peak is among them."""


def test_the_last_of_every_k_blocks_is_recomputed() -> None:
    setup = small_setup(shape=DEEP, options={"checkpoint": "selective", "checkpoint_every": 4})
    kinds = [block.checkpoint for block in outline_model(setup).blocks if isinstance(block, Block)]
    assert kinds == ["none", "none", "none", "selective", "none", "none"]


def test_stages_count_blocks_by_their_number_in_the_model() -> None:
    assert [recomputed_count(range(first, first + 3), every=2) for first in (0, 3, 6)] == [1, 2, 1]


PEAKS: tuple[tuple[str, int, Precision, Options], ...] = (
    ("single", 1, "fp32", {"checkpoint": "full", "checkpoint_every": 2}),
    ("single", 1, "bf16", {"checkpoint": "full", "checkpoint_every": 4, "accumulate": 2}),
    ("single", 1, "bf16", {"checkpoint": "selective", "checkpoint_every": 3}),
    ("ddp", 2, "fp32", {"checkpoint": "selective", "checkpoint_every": 2}),
    ("gpipe", 2, "fp32", {"checkpoint": "full", "checkpoint_every": 2}),
    ("gpipe", 2, "bf16", {"checkpoint": "selective", "checkpoint_every": 2}),
    ("one_f_one_b", 2, "bf16", {"checkpoint": "full", "checkpoint_every": 3}),
    ("fsdp", 2, "fp32", {"checkpoint": "full", "checkpoint_every": 2}),
    ("fsdp", 2, "fp32", {"checkpoint": "full", "checkpoint_every": 3, "wrap": "layer", "accumulate": 2}),
    ("ulysses", 2, "fp32", {"checkpoint": "full", "checkpoint_every": 3}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "precision", "options"), PEAKS, ids=str)
def test_the_peak_of_a_step_is_as_predicted(
    name: str, ranks: int, precision: Precision, options: Options, on_ranks: OnRanks
) -> None:
    setup = small_setup(name, ranks=ranks, shape=DEEP, precision=precision, options={**options, "weights": "autocast"})
    assert not spec_of(name).all_refusals(setup)
    predicted = spec_of(name).peak(setup)
    assert isinstance(predicted, Prediction)
    most = max(live["total"] for live in on_ranks(ranks, peak_by_category, setup))
    assert predicted.total_bytes == pytest.approx(most, rel=0.01)


SENT: tuple[tuple[str, int, Options], ...] = (
    ("tensor_parallel", 2, {"checkpoint": "full", "sequence_parallel": True}),
    ("ulysses", 2, {"checkpoint": "full", "accumulate": 2}),
    ("ring_attention", 2, {"checkpoint": "selective"}),
    ("three_d", 4, {"checkpoint": "full", "balance": "flops"}),
)


def sent_in_a_step(setup: SmallSetup) -> dict[str, int]:
    ready = make_ready(setup)
    for _ in range(2):
        ready.step()
    sent = Counter(watch_step(ready).payload_bytes)
    if isinstance(ready.workload, CountsPayload):
        sent.update(ready.workload.payload_bytes())
    return dict(sent)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "options"), SENT, ids=str)
def test_only_recomputed_blocks_send_again(name: str, ranks: int, options: Options, on_ranks: OnRanks) -> None:
    setup = small_setup(name, ranks=ranks, shape=DEEP, options={**options, "checkpoint_every": 4})
    assert not spec_of(name).all_refusals(setup)
    most: Counter[str] = Counter()
    for sent in on_ranks(ranks, sent_in_a_step, setup):
        most |= Counter(sent)
    assert dict(most) == recorded_bytes(spec_of(name).transfers(setup), "gloo")


def test_the_papers_account_adds_up_both_kinds_of_blocks() -> None:
    one = replace(DEEP, layers=1)
    mixed = paper_activation_bytes(DEEP, 2, "full", checkpoint_every=4)
    assert mixed == paper_activation_bytes(one, 2, "full") + 5 * paper_activation_bytes(one, 2, "none")


def test_the_papers_account_of_unequal_stages_is_absent() -> None:
    setup = small_setup("gpipe", ranks=2, options={"checkpoint": "full", "checkpoint_every": 2})
    assert isinstance(spec_of("gpipe").paper_activations(setup), Absent)


REFUSED: tuple[tuple[str, Options, str], ...] = (
    ("single", {"checkpoint_every": 2}, "with checkpoint=none, so nothing is recomputed"),
    ("fsdp", {"checkpoint_every": 5, "checkpoint": "full"}, "5 with 4 layers, so no block would be recomputed; use 4"),
    ("gpipe", {"checkpoint_every": 2, "checkpoint": "full", "balance": "measured"}, "it times one block"),
)


@pytest.mark.parametrize(("name", "options", "reason"), REFUSED, ids=str)
def test_what_means_nothing_is_refused(name: str, options: Options, reason: str) -> None:
    setup = small_setup(name, ranks=1 if name == "single" else 2, options=options)
    (refusal,) = spec_of(name).refusals(setup)
    assert reason in refusal
