"""The card of `single`: one rank trains the model alone; what every other strategy is compared with."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Parity, Setup
from workloads.cards.training_options import TRAINING_OPTIONS, batch_refusals
from workloads.laws.terms import States, Transfer, replicated_states


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": 1}


def _refusals(setup: Setup) -> list[str]:
    return batch_refusals(setup, data_ranks=1)


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    return ()


def _states(setup: Setup) -> States:
    return replicated_states(setup.shape)


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
)
