"""What the cards of pipelines tell of the peak of a step."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.cards.card import Setup
from workloads.cards.training_options import microbatch, peak_not_covered
from workloads.laws.live_tensors import Prediction
from workloads.laws.pipeline import HALVED_BACKWARD, Pipeline
from workloads.laws.pipeline_peak import pipeline_step_peak
from workloads.laws.terms import NotCovered


def peak_of_stages(setup: Setup, pipeline: Pipeline, counts: Sequence[int]) -> Prediction | NotCovered:
    """The peak on the rank that holds most. counts: blocks of each stage, where they are known."""
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    if pipeline.schedule in HALVED_BACKWARD:
        return NotCovered(reason="what half of a backward keeps for the other half is autograd's choice")
    size = microbatch(setup, 1)
    ranks = (pipeline_step_peak(pipeline, size, counts, rank) for rank in range(pipeline.ranks))
    return max(ranks, key=lambda peak: peak.total_bytes)
