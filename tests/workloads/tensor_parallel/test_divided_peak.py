"""The peak of a rank with a part of each product: that of one rank's law, and of the divided loss."""

from __future__ import annotations

from workloads.cost_models.memory import Microbatch
from workloads.cost_models.peak_memory import Prediction, fresh_gradients, step_peak
from workloads.cost_models.shape import PRESETS
from workloads.tensor_parallel.cost_model import (
    ShardedMicrobatch,
    shard_microbatch,
    tensor_parallel_peak,
    tensor_parallel_states,
)

SHAPE = PRESETS["tiny"]
WHOLE = Microbatch(shape=SHAPE, sequences=SHAPE.batch, precision="fp32", checkpoint="none")


def part(*, ranks: int, is_loss_sharded: bool = False) -> ShardedMicrobatch:
    return shard_microbatch(WHOLE, ranks=ranks, is_stream_sharded=False, is_loss_sharded=is_loss_sharded)


def peak(microbatch: ShardedMicrobatch, *, microbatches: int = 1) -> Prediction:
    states = tensor_parallel_states(SHAPE, microbatch.ranks)
    backwards = fresh_gradients(states.gradients_bytes, microbatches)
    return tensor_parallel_peak(microbatch, states=states, backwards=backwards)


def test_one_rank_has_the_peak_of_a_whole_model() -> None:
    states = tensor_parallel_states(SHAPE, 1)
    assert peak(part(ranks=1)) == step_peak(WHOLE, states=states, backwards=fresh_gradients(states.gradients_bytes, 1))


def test_the_peak_is_at_the_loss_by_hand() -> None:
    """Two tensors of logits beside what forward left, but for the targets."""
    size = part(ranks=2)
    found = peak(size)
    kept = SHAPE.layers * size.block_bytes + size.head_bytes - size.targets_bytes
    assert found.activations_bytes == kept + size.tokens_bytes
    assert found.temporary_bytes == 2 * size.probabilities_bytes


def test_a_divided_loss_makes_its_gradient_in_three_tensors() -> None:
    size = part(ranks=2, is_loss_sharded=True)
    found = peak(size)
    kept = SHAPE.layers * size.block_bytes + size.head_bytes
    assert found.activations_bytes == kept + size.tokens_bytes
    assert found.temporary_bytes == 3 * size.probabilities_bytes


def test_beside_a_second_microbatch_live_the_gradients_of_the_first() -> None:
    found = peak(part(ranks=2, is_loss_sharded=True), microbatches=2)
    assert found.gradients_bytes == tensor_parallel_states(SHAPE, 2).gradients_bytes
