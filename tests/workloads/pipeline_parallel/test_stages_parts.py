"""Stages of a model one after the other are the model."""

from __future__ import annotations

import pytest
import torch

from tests.workloads.training.setups import SMALL
from workloads.core.transformer import Transformer, next_token_loss
from workloads.pipeline_parallel.stages import StageModel, cut


def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SMALL)


def test_stages_in_a_row_compute_the_loss_and_the_gradients_of_the_model() -> None:
    whole, again = model(), model()
    stages = [StageModel(again, blocks) for blocks in cut(SMALL.layers, (1, 2, 1))]
    tokens_bs = torch.randint(SMALL.vocabulary, (2, SMALL.sequence + 1))
    expected = next_token_loss(whole(tokens_bs[:, :-1]), tokens_bs[:, 1:])
    expected.backward()  # type: ignore[no-untyped-call]
    stages[-1].targets_bs = tokens_bs[:, 1:]
    out = tokens_bs[:, :-1]
    for stage in stages:
        out = stage(out)
    out.backward()  # type: ignore[no-untyped-call]
    assert torch.equal(out, expected)
    gradients = {name: weight.grad for stage in stages for name, weight in stage.named_parameters()}
    assert gradients.keys() == dict(whole.named_parameters()).keys()
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad)


def test_each_weight_is_in_one_stage() -> None:
    whole = model()
    stages = [StageModel(whole, blocks) for blocks in cut(SMALL.layers, (2, 2))]
    held = [id(weight) for stage in stages for weight in stage.parameters()]
    assert sorted(held) == sorted(id(weight) for weight in whole.parameters())


def test_a_single_stage_has_both_ends() -> None:
    stage = StageModel(model(), range(SMALL.layers))
    stage.targets_bs = torch.zeros((1, SMALL.sequence), dtype=torch.int64)
    assert stage(torch.zeros((1, SMALL.sequence), dtype=torch.int64)).shape == ()


def test_blocks_follow_each_other_from_stage_to_stage() -> None:
    assert cut(6, (1, 3, 2)) == [range(1), range(1, 4), range(4, 6)]


def test_counts_that_are_not_all_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="stages have 5 blocks together; the model has 6"):
        cut(6, (3, 2))
