"""The bytes of training state that a card declares are those that its ranks hold."""

from __future__ import annotations

import pytest

from tests.ranks import OnRanks
from tests.workloads.setups import SmallSetup, ranks_of, small_setup
from tests.workloads.training_runs import make_ready
from tests.workloads.watched_steps import held_states
from workloads.cards.card import Card
from workloads.laws.terms import States
from workloads.roster import CARDS


def states_after_two_steps(setup: SmallSetup) -> States:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    return held_states(ready.workload)


@pytest.mark.parametrize("card", [card for card in CARDS if card.kind == "training"], ids=lambda card: card.name)
def test_ranks_hold_the_bytes_that_the_card_declares(card: Card, on_ranks: OnRanks) -> None:
    setup = small_setup(card.name, ranks=ranks_of(card))
    for rank, states in enumerate(on_ranks(setup.ranks, states_after_two_steps, setup)):
        assert states == card.states(setup, rank)
