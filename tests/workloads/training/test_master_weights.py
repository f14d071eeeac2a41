"""AdamW with an fp32 master: what it keeps, what the ranks hold, and what `weights` and `grad_dtype` refuse."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from tests.support.ranks import OnRanks
from tests.workloads.training.building_peak import building_peak
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from tests.workloads.training.watched_steps import held_states
from workloads.core.precision import MasterAdamW, clip_in_fp32, compute_with_rounded_weights
from workloads.core.precision_options import precision_notes
from workloads.cost_models.terms import States
from workloads.registry import SPECS, spec_of
from workloads.spec import OptionValue, Precision

Options = Mapping[str, OptionValue]


def test_the_master_keeps_updates_that_are_too_small_for_bf16() -> None:
    master = torch.ones(3)
    weight = nn.Parameter(master.bfloat16())
    optimizer = MasterAdamW([weight], masters={weight: master}, lr=1e-3, weight_decay=0.0)
    weights = []
    for _ in range(4):
        weight.grad = torch.ones(3, dtype=torch.bfloat16)
        optimizer.step()
        weights.append(weight[0].item())
    # Below 1 the steps of bf16 are 2^-8, so that 0.999 is 1 again; without a master it would be 1 for ever.
    assert weights == [1.0, *[1 - 2**-8] * 3]
    assert master[0].item() == pytest.approx(0.996, abs=1e-5)


def test_clipping_adds_up_the_norm_in_fp32() -> None:
    weights = [nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)) for _ in range(2)]
    for weight, gradient in zip(weights, (16.0, 3.0), strict=True):
        weight.grad = torch.tensor([gradient], dtype=torch.bfloat16)
    assert clip_in_fp32(weights, 100.0).item() == pytest.approx(265**0.5)  # In bf16 it would be 16.25.
    clip_in_fp32(weights, 1.0)
    assert [weight.grad.item() for weight in weights if weight.grad is not None] == pytest.approx(
        [16 / 265**0.5, 3 / 265**0.5], rel=2**-8
    )


def test_a_layer_that_no_rule_rounds_is_refused() -> None:
    setup = small_setup(precision="bf16", options={"weights": "bf16_compute"})
    with pytest.raises(RuntimeError, match="layer 0 is a LayerNorm, for which weights=bf16_compute has no rule"):
        compute_with_rounded_weights(setup, nn.Sequential(nn.LayerNorm(4)))


HELD: tuple[tuple[str, int, Options, int], ...] = (
    ("single", 1, {"weights": "autocast"}, 16),
    ("single", 1, {"weights": "bf16_compute"}, 16),
    ("single", 1, {"weights": "bf16"}, 18),
    ("single", 1, {"weights": "bf16", "grad_dtype": "bf16"}, 16),
    ("ddp", 2, {"weights": "bf16"}, 18),
    ("ddp", 2, {"weights": "bf16", "grad_dtype": "bf16"}, 16),
)
"""With the bytes of a weight in all, besides AdamW's count of steps."""


def states_after_two_steps(setup: SmallSetup) -> States:
    ready = make_ready(setup)
    for _ in range(2):
        ready.step()
    return held_states(ready.workload)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "options", "bytes_each"), HELD, ids=str)
def test_ranks_hold_megatrons_bytes_of_a_weight(
    name: str, ranks: int, options: Options, bytes_each: int, on_ranks: OnRanks
) -> None:
    setup = small_setup(name, ranks=ranks, precision="bf16", options=options)
    for rank, held in enumerate(on_ranks(ranks, states_after_two_steps, setup)):
        assert held == spec_of(name).states(setup, rank)
        total_bytes = held.parameters_bytes + held.gradients_bytes + held.optimizer_bytes
        assert total_bytes == bytes_each * SMALL.parameters() + 4 * SMALL.parameter_tensors()


def test_zero1_divides_the_master_as_megatrons_distributed_optimizer_does() -> None:
    setup = small_setup("zero1", ranks=4, precision="bf16", options={"weights": "bf16"})
    paper = spec_of("zero1").paper_states(setup)
    parameters = SMALL.parameters()
    assert (paper.parameters_bytes, paper.gradients_bytes, paper.optimizer_bytes) == (
        2 * parameters,
        4 * parameters,
        3 * parameters,
    )
    optimizer_bytes = sum(spec_of("zero1").states(setup, rank).optimizer_bytes for rank in range(4))
    assert optimizer_bytes == 12 * parameters + 4 * SMALL.parameter_tensors()


def test_weights_are_rounded_before_the_optimizer_is_made(on_ranks: OnRanks) -> None:
    setup = small_setup(precision="bf16", options={"weights": "bf16"})
    tables_bytes = 4 * SMALL.sequence * SMALL.head_width
    (peak_bytes,) = on_ranks(1, building_peak, setup, 64)
    assert 0 <= peak_bytes - tables_bytes - (4 + 2) * SMALL.parameters() <= 4096


REFUSED: tuple[tuple[str, Precision, Options, str], ...] = (
    ("single", "fp32", {"weights": "bf16_compute"}, "with --precision fp32, which always keeps fp32 weights"),
    ("fsdp", "fp16", {"weights": "bf16"}, "with --precision fp16, which always keeps fp32 weights"),
    ("fsdp", "bf16", {"weights": "bf16"}, "FSDP2's fp32 shards already are the master"),
    ("gpipe", "bf16", {"weights": "bf16"}, "only the optimizers of single, ddp and zero1 keep an fp32 master"),
    ("deepspeed", "bf16", {"weights": "bf16_compute"}, "DeepSpeed's engine casts weights by rules of its own"),
    ("ddp", "bf16", {"grad_dtype": "bf16"}, "gradients of fp32 weights are fp32 in ddp"),
    ("tensor_parallel", "bf16", {"grad_dtype": "bf16"}, "gradients of fp32 weights are fp32 in tensor_parallel"),
    ("ddp", "bf16", {"weights": "bf16", "compress": "topk"}, "compress is topk, but weights=bf16 averages"),
    ("ddp", "bf16", {"weights": "bf16", "static_graph": True}, "static_graph is true, but weights=bf16 averages"),
)


@pytest.mark.parametrize(("name", "precision", "options", "reason"), REFUSED, ids=str)
def test_what_weights_cannot_be_is_refused_with_the_reason(
    name: str, precision: Precision, options: Options, reason: str
) -> None:
    spec = spec_of(name)
    setup = small_setup(name, ranks=max(2, spec.needs.minimum_ranks), precision=precision, options=options)
    assert any(reason in refusal for refusal in spec.refusals(setup)), spec.refusals(setup)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_only_what_fsdp2_shards_computes_with_bf16_weights_by_default(precision: Precision) -> None:
    chosen = {
        spec.name: small_setup(spec.name, ranks=8, precision=precision).options["weights"]
        for spec in SPECS
        if spec.kind == "training"
    }
    half = {name for name, weights in chosen.items() if weights == "bf16_compute"}
    assert half == ({"fsdp", "hsdp", "zero2"} if precision == "bf16" else set())
    assert set(chosen.values()) <= {"autocast", "bf16_compute"}


def test_three_d_computes_with_bf16_weights_where_fsdp2_divides_its_stages() -> None:
    setup = small_setup("three_d", ranks=8, precision="bf16", options={"data_axis": "fsdp"})
    assert setup.options["weights"] == "bf16_compute"


def test_a_run_in_bf16_says_in_one_line_how_its_weights_are_kept() -> None:
    (note,) = precision_notes(small_setup("fsdp", ranks=2, precision="bf16"))
    assert note.startswith("weights=bf16_compute: weights are fp32, and every layer computes in bf16, as FSDP2 does")
    assert not precision_notes(small_setup("fsdp", ranks=2))
