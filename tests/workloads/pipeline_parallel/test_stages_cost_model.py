"""What stages hold and send, against the whole model and messages counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workloads.cost_models.memory import Microbatch
from workloads.cost_models.schedules import Pipeline, ScheduleName
from workloads.cost_models.shape import PRESETS
from workloads.cost_models.terms import Transfer, model_weights, replicated_states
from workloads.pipeline_parallel.memory import (
    activations_by_stage,
    boundary_bytes,
    boundary_transfers,
    stage_states,
    stage_weights,
    stored_bytes,
)

TINY = PRESETS["tiny"]


def pipeline(
    schedule: ScheduleName = "gpipe", *, ranks: int = 4, stages_per_rank: int = 1, microbatches: int = 8
) -> Pipeline:
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        stages_per_rank=stages_per_rank,
        microbatches=microbatches,
        boundary_bytes=1000,
    )


def microbatch() -> Microbatch:
    return Microbatch(shape=TINY, sequences=2, precision="fp32", checkpoint="none")


def test_stages_hold_the_whole_model_in_its_order() -> None:
    counts = (1, 2, 1)
    held = [weight for stage in range(3) for weight in stage_weights(TINY, counts, stage)]
    assert tuple(held) == model_weights(TINY)


def test_the_states_of_one_stage_alone_are_those_of_a_replica() -> None:
    assert stage_states(stage_weights(TINY, (TINY.layers,), 0)) == replicated_states(TINY)


def test_a_boundary_is_the_stream_of_a_microbatch() -> None:
    assert boundary_bytes(TINY, sequences=2) == 2 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("one", "messages"),
    [
        (pipeline(ranks=2), 8),  # Forward to the one neighbour, or back to it.
        (pipeline(ranks=4), 16),  # An inner rank does both.
        (pipeline("interleaved", ranks=2, stages_per_rank=2), 24),  # Each rank has an inner stage and an outer one.
        (pipeline("interleaved", ranks=4, stages_per_rank=2), 32),
        (pipeline("zbv", ranks=2, stages_per_rank=2), 16),  # At the V's tip two stages share a rank.
        (pipeline("zbv", ranks=4, stages_per_rank=2), 32),
        (pipeline("naive", ranks=4, microbatches=1), 2),
    ],
)
def test_the_busiest_rank_sends_a_message_for_each_microbatch_and_facing_end(one: Pipeline, messages: int) -> None:
    (sent,) = boundary_transfers(one, numbers=0)
    assert (sent.collective, sent.axis) == ("send", "stage")
    assert (sent.calls, sent.payload_bytes) == (messages, 1000 * messages)


def test_one_rank_alone_sends_nothing() -> None:
    assert boundary_transfers(pipeline(ranks=1), numbers=1) == ()


def test_numbers_that_ranks_agree_on_are_four_bytes_each() -> None:
    _, agreed = boundary_transfers(pipeline(), numbers=2)
    assert agreed == Transfer(collective="all_reduce", axis="stage", payload_bytes=8, calls=2)


def test_what_stages_store_is_what_the_model_stores_and_a_stream_at_each_cut() -> None:
    size, counts = microbatch(), (1, 2, 1)
    whole = TINY.layers * size.stored_block_bytes + size.head_bytes
    cut = sum(stored_bytes(size, counts, stage) for stage in range(3))
    assert cut == whole + 2 * size.stream_bytes + 4


def test_gpipe_keeps_all_microbatches_and_one_f_one_b_those_on_the_way() -> None:
    size, counts = microbatch(), (1, 1, 1, 1)
    each = [stored_bytes(size, counts, stage) for stage in range(4)]
    assert activations_by_stage(pipeline(), size, counts) == tuple(8 * one for one in each)
    kept = activations_by_stage(pipeline("one_f_one_b"), size, counts)
    assert kept == tuple((4 - stage) * one for stage, one in enumerate(each))


def test_checkpointing_leaves_a_stream_for_each_block() -> None:
    size = replace(microbatch(), checkpoint="full")
    assert stored_bytes(size, (1, 2, 1), 1) == 3 * size.stream_bytes
