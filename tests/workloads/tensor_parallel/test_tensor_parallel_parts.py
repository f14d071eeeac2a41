"""Divided products compute what whole ones do, in whatever part of the model they stand, by Megatron's collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group

from collectors.rank import flight_recorder
from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.core.mesh import make_mesh
from workloads.core.trainer import make_model
from workloads.spec import OptionValue
from workloads.tensor_parallel.strategy import norm_weights, parallelize

RANKS = 2
CLOSE = 1e-5


class Stage(nn.Module):
    """The last two blocks of the model with its head, as a pipeline's last stage has them."""

    def __init__(self, setup: SmallSetup) -> None:
        super().__init__()
        model = make_model(setup)
        self.blocks = nn.ModuleDict({str(place): model.blocks[place] for place in (2, 3)})
        self.norm = model.norm
        self.head = model.head
        self.tables = model.cos_sr, model.sin_sr

    def forward(self, x_bsd: Tensor) -> Tensor:
        for block in self.blocks.values():
            x_bsd = block(x_bsd, *self.tables)
        logits_bsv: Tensor = self.head(self.norm(x_bsd))
        return logits_bsv


def divided_setup(options: Mapping[str, OptionValue]) -> SmallSetup:
    return small_setup("tensor_parallel", ranks=RANKS, options=options)


def stream() -> Tensor:
    """What the stage receives, on all ranks."""
    drawn = torch.randn((2, SMALL.sequence, SMALL.width), generator=torch.Generator().manual_seed(3))
    return drawn.requires_grad_()


def own_positions(x_bsd: Tensor, rank: int, options: Mapping[str, OptionValue]) -> Tensor:
    return x_bsd.chunk(RANKS, dim=1)[rank] if options["sequence_parallel"] else x_bsd


def run_stage(options: Mapping[str, OptionValue]) -> tuple[Tensor, Tensor, list[str]]:
    """The stage's logits, the gradient of its input, and the names of its weights."""
    setup = divided_setup(options)
    mesh = make_mesh({"tensor": RANKS}, "cpu")
    stage = Stage(setup)
    parallelize(setup, stage, mesh)
    received = own_positions(stream().detach(), mesh.get_rank(), options).requires_grad_()
    logits_bsv = stage(received)
    logits_bsv.square().sum().backward()
    assert received.grad is not None
    return logits_bsv.detach(), received.grad, [name for name, _ in stage.named_parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("is_divided", [False, True])
def test_a_stage_of_a_pipeline_computes_what_it_does_whole(is_divided: bool, on_ranks: OnRanks) -> None:
    options = {"sequence_parallel": is_divided}
    whole, received = Stage(small_setup()), stream()
    logits_bsv = whole(received)
    logits_bsv.square().sum().backward()
    assert received.grad is not None
    for rank, (own_logits_bsv, gradient, names) in enumerate(on_ranks(RANKS, run_stage, options)):
        truth = own_positions(received.grad, rank, options)
        assert (own_logits_bsv - logits_bsv).norm() <= CLOSE * logits_bsv.norm()
        assert (gradient - truth).norm() <= CLOSE * truth.norm()
        assert names == [name for name, _ in whole.named_parameters()]


def entered_in(work: Callable[[], object]) -> Counter[str]:
    before = flight_recorder.dump("gloo")
    work()
    return Counter(entered.name for entered in flight_recorder.entered_since(before, flight_recorder.dump("gloo")))


def count_in_block(options: Mapping[str, OptionValue]) -> tuple[Counter[str], Counter[str]]:
    """The collectives of one block's forward, and of its backward."""
    setup = divided_setup(options)
    mesh = make_mesh({"tensor": RANKS}, "cpu")
    stage = Stage(setup)
    parallelize(setup, stage, mesh)
    received = own_positions(stream().detach(), mesh.get_rank(), options).requires_grad_()
    out: list[Tensor] = []
    forward = entered_in(lambda: out.append(stage.blocks["2"](received, *stage.tables)))
    return forward, entered_in(lambda: torch.autograd.grad(out[0].sum(), received))


def test_a_block_takes_megatrons_two_all_reduces_forward_and_two_backward(on_ranks: OnRanks) -> None:
    two = Counter(all_reduce=2)
    assert on_ranks(RANKS, count_in_block, {"sequence_parallel": False}) == [(two, two)] * RANKS


def test_a_divided_stream_takes_all_gathers_and_reduce_scatters_instead(on_ranks: OnRanks) -> None:
    """gloo's reduce_scatter is an all_reduce."""
    two_each = Counter(all_gather=2, all_reduce=2)
    assert on_ranks(RANKS, count_in_block, {"sequence_parallel": True}) == [(two_each, two_each)] * RANKS


def types_alone() -> set[type]:
    setup = small_setup("tensor_parallel", ranks=1)
    model = make_model(setup)
    parallelize(setup, model, make_mesh({"tensor": 1}, "cpu"))
    return {type(weight) for weight in model.parameters()}


@pytest.mark.slow
def test_a_rank_alone_has_plain_weights(on_ranks: OnRanks) -> None:
    assert on_ranks(1, types_alone) == [{nn.Parameter}]


def test_whole_weights_are_those_of_norms() -> None:
    model = make_model(small_setup())
    named = dict(model.named_parameters())
    whole = [name for name, weight in named.items() if any(weight is norm for norm in norm_weights(model))]
    assert whole == [name for name in named if "norm" in name]
    assert len(whole) == 2 * SMALL.layers + 1


def prepare_compiler() -> tuple[bool, bool]:
    """Whether the compiler shall hide collectives, and may do so in the mesh's group."""
    import torch._inductor.config

    mesh = make_mesh({"tensor": RANKS}, "cpu")
    setup = divided_setup({"async_tp": True, "sequence_parallel": True})
    parallelize(setup, make_model(setup), mesh)
    # Since 2.15 torch also asks whether the machine's accelerator has symmetric memory, which a CPU has not.
    with patch("torch.accelerator.current_accelerator", return_value=torch.device("cuda")):
        is_enabled = is_symm_mem_enabled_for_group(mesh.get_group().group_name)
    return torch._inductor.config._micro_pipeline_tp, is_enabled


def test_the_compiler_is_told_to_hide_collectives_of_the_meshs_group(on_ranks: OnRanks) -> None:
    assert on_ranks(RANKS, prepare_compiler) == [(True, True)] * RANKS
