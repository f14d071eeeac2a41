"""Each cause is named by the evidence that it leaves, alone, and with the first step that shows it."""

from __future__ import annotations

import pytest

from bench.analysis.convergence.diagnosis import diagnose
from bench.analysis.convergence.evidence import ConvergenceEvidence, NoCause, RootCause
from tests.bench.analysis.convergence.evidence import (
    EPOCH_STEPS,
    RATE,
    STATISTICS,
    STEPS,
    Change,
    evidence_of,
    sequences,
    steps_of,
    unchanged,
)


def named(found: ConvergenceEvidence) -> list[tuple[str, int]]:
    return [(answer.cause, answer.step) for answer in diagnose(found) if isinstance(answer, RootCause)]


def text_of(found: ConvergenceEvidence) -> str:
    (cause,) = (answer for answer in diagnose(found) if isinstance(answer, RootCause))
    return cause.text


def slow_rate(step: int) -> dict[str, object]:
    return {"learning_rates": [RATE / 2]} if step >= 3 else {}


def first_epoch_again(rank: int) -> Change:
    return lambda step: {"sequences": sequences(step % EPOCH_STEPS, rank)}


def own_statistics(step: int) -> dict[str, object]:
    return {"statistics": [0.6, *STATISTICS[1:]]}


def test_equal_evidence_rules_every_cause_out() -> None:
    answers = diagnose(evidence_of())
    assert len(answers) == 8
    assert all(isinstance(answer, NoCause) and answer.verdict == "ruled out" for answer in answers)


def test_a_rate_that_the_rule_does_not_say_is_named_with_both_rates() -> None:
    found = evidence_of((slow_rate, slow_rate))
    assert named(found) == [("learning_rate", 3)]
    assert text_of(found) == (
        "rank 0 and rank 1 used learning rate 0.0005, but lr_rule=linear over 2 data ranks gives 0.001"
    )


def test_a_rate_that_only_the_one_rank_has_wrong_is_named_too() -> None:
    found = evidence_of(reference=slow_rate)
    assert named(found) == [("learning_rate", 3)]
    assert text_of(found).startswith("the one rank used")


def test_one_of_several_groups_with_another_rate_is_enough() -> None:
    found = evidence_of((lambda step: {"learning_rates": [RATE, 2 * RATE]}, unchanged))
    assert text_of(found).startswith("rank 0 used learning rate 0.002")


def test_an_epoch_that_repeats_the_first_is_named_by_the_repetition() -> None:
    found = evidence_of((first_epoch_again(0), first_epoch_again(1)))
    assert named(found) == [("sampler_epoch", 2)]
    assert (
        text_of(found) == "rank 0 and rank 1 read the sequences of step 0 again: every epoch has the order of the first"
    )


def test_epochs_of_the_one_rank_that_are_all_alike_are_no_mistake_of_the_ranks() -> None:
    def alike(step: int) -> dict[str, object]:
        return {"sequences": [sequence for rank in (0, 1) for sequence in sequences(step % EPOCH_STEPS, rank)]}

    assert named(evidence_of(reference=alike)) == [("data_shares", 2)]


def test_ranks_that_read_the_same_share_are_told_from_a_repeated_epoch() -> None:
    found = evidence_of((unchanged, lambda step: {"sequences": sequences(step, 0)}))
    assert named(found) == [("data_shares", 0)]
    assert text_of(found) == "several ranks read the same 1 sequence, but one rank reads each only once"


def test_sequences_that_nobody_should_read_are_counted() -> None:
    found = evidence_of((unchanged, lambda step: {"sequences": ["another"]} if step == 4 else {}))
    assert named(found) == [("data_shares", 4)]
    assert text_of(found) == "1 of 2 sequences differ from those that one rank reads"


def test_ranks_that_share_a_place_count_once() -> None:
    ranks = [steps_of(0), steps_of(0), steps_of(1), steps_of(1)]
    assert named(evidence_of(ranks=ranks, data_ranks=[0, 0, 1, 1])) == []


def test_a_rank_that_reads_nothing_is_not_asked() -> None:
    ranks = [steps_of(0, lambda step: {"sequences": [], "loss": None}), steps_of(0), steps_of(1)]
    assert named(evidence_of(ranks=ranks, data_ranks=[None, 0, 1])) == []


def test_statistics_that_differ_between_ranks_are_named_with_the_channel() -> None:
    found = evidence_of((unchanged, own_statistics))
    assert named(found) == [("batch_statistics", 0)]
    assert text_of(found) == (
        "each rank normalises by its own statistics: the mean of channel 0 is 0.5 on rank 0 and 0.6 on rank 1"
    )


def test_statistics_that_are_alike_on_ranks_and_not_those_of_one_rank_are_named() -> None:
    found = evidence_of((own_statistics, own_statistics))
    assert text_of(found) == "the mean of channel 0 is 0.6 on all ranks and 0.5 on one rank, for the same sequences"


def test_weights_that_begin_otherwise_are_named() -> None:
    found = evidence_of((unchanged, lambda step: {"weights": "other"}))
    assert named(found) == [("initial_weights", 0)]
    assert text_of(found) == "rank 1 began with different weights from one rank"


def test_replicas_that_drift_apart_are_named_with_the_first_step() -> None:
    found = evidence_of((unchanged, lambda step: {"weights": f"own {step}"} if step >= 4 else {}))
    assert named(found) == [("replicas", 4)]


@pytest.mark.parametrize(
    ("norm", "projection"), [(4.0, 1.0), (2.0, -0.5)], ids=["a sum instead of a mean", "another sign"]
)
def test_gradients_of_step_0_that_differ_where_all_before_them_is_alike_are_named(
    norm: float, projection: float
) -> None:
    change: Change = lambda step: {} if step else {"gradients": {"head.weight": (norm, projection)}}  # noqa: E731
    found = evidence_of((change, change), clip=0.0)
    assert named(found) == [("gradients", 0)]
    assert "head.weight on rank 0" in text_of(found)


def test_gradients_are_not_blamed_for_what_changes_them() -> None:
    def change(step: int) -> dict[str, object]:
        return {**own_statistics(step), "gradients": {"head.weight": (3.0, 0.5)}}

    found = evidence_of((unchanged, change))
    assert named(found) == [("batch_statistics", 0)]
    assert any(
        isinstance(answer, NoCause) and answer.verdict == "not examined" and "gradients" in answer.text
        for answer in diagnose(found)
    )


def test_a_wrong_rate_in_step_0_leaves_its_gradients_to_be_examined() -> None:
    def change(step: int) -> dict[str, object]:
        return {"learning_rates": [2 * RATE], "gradients": {} if step else {"head.weight": (3.0, 0.5)}}

    assert named(evidence_of((change, change), clip=0.0)) == [("learning_rate", 0), ("gradients", 0)]


def test_two_mistakes_at_once_are_both_named() -> None:
    def both(rank: int) -> Change:
        return lambda step: {**first_epoch_again(rank)(step), **slow_rate(step)}

    assert sorted(named(evidence_of((both(0), both(1))))) == [("learning_rate", 3), ("sampler_epoch", 2)]


def test_what_left_no_evidence_is_not_examined_and_says_so() -> None:
    def divided(step: int) -> dict[str, object]:
        return {"weights": None, "statistics": [], "learning_rates": [], "initial": {}, "updates": {}}

    found = evidence_of((divided, divided), divided, clip=0.0)
    texts = [
        answer.text for answer in diagnose(found) if isinstance(answer, NoCause) and answer.verdict == "not examined"
    ]
    assert [text.partition(":")[0] for text in texts] == [
        "learning rate",
        "batch statistics",
        "initial weights",
        "replicas",
        "updates",
        "clipping",
    ]


def test_an_epoch_that_does_not_end_is_said_to_be_unseen() -> None:
    texts = [
        answer.text
        for answer in diagnose(evidence_of(epoch_steps=STEPS))
        if isinstance(answer, NoCause) and answer.verdict == "ruled out"
    ]
    assert "sequences: together the ranks read what one rank reads (no epoch ended)" in texts
