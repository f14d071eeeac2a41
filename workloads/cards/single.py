"""The card of `single`: one rank trains the model alone; what every other strategy is compared with."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Parity, Setup
from workloads.cards.training_options import TRAINING_OPTIONS, microbatch, peak_not_covered, training_refusals
from workloads.laws.live_tensors import Prediction, fresh_gradients, step_peak
from workloads.laws.memory import paper_states
from workloads.laws.terms import NotCovered, States, Transfer, replicated_states


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": 1}


def _refusals(setup: Setup) -> list[str]:
    return training_refusals(setup, data_ranks=1)


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    return ()


def _states(setup: Setup, rank: int) -> States:
    return replicated_states(setup.shape)


def _paper_states(setup: Setup) -> States:
    return paper_states(setup.shape.parameters(), stage=0, data_ranks=1)


def _peak(setup: Setup) -> Prediction | NotCovered:
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    states = replicated_states(setup.shape)
    backwards = fresh_gradients(states.gradients_bytes, int(setup.options["accumulate"]))
    return step_peak(microbatch(setup, 1), states=states, backwards=backwards)


CARD = Card(
    name="single",
    kind="training",
    summary="one rank trains the whole model; the baseline of all others",
    version=1,
    options=TRAINING_OPTIONS,
    needs=Needs(maximum_ranks=1),
    parity=Parity(
        kind="exact",
        variants=({"accumulate": 2}, {"checkpoint": "full"}, {"checkpoint": "selective"}),
    ),
    mesh=_mesh,
    refusals=_refusals,
    transfers=_transfers,
    states=_states,
    paper_states=_paper_states,
    peak=_peak,
)
