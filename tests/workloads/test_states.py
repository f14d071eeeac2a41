"""The bytes of training state that a card declares are those that its ranks hold."""

from __future__ import annotations

import pytest

from collectors.state_bytes import state_bytes
from tests.ranks import OnRanks
from tests.workloads.setups import SmallSetup, ranks_of, small_setup
from tests.workloads.training_runs import make_ready
from workloads.cards.card import Card
from workloads.laws.terms import States
from workloads.roster import CARDS
from workloads.workload import HoldsTensors


def states_after_two_steps(setup: SmallSetup) -> States:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    held = ready.workload.held_tensors() if isinstance(ready.workload, HoldsTensors) else None
    samples = state_bytes(ready.workload.model, ready.workload.optimizer, held)
    found = {sample.labels["part"]: int(sample.value) for sample in samples}
    return States(
        parameters_bytes=found.get("parameters", 0),
        gradients_bytes=found.get("gradients", 0),
        optimizer_bytes=found.get("optimizer", 0),
    )


@pytest.mark.parametrize("card", [card for card in CARDS if card.kind == "training"], ids=lambda card: card.name)
def test_ranks_hold_the_bytes_that_the_card_declares(card: Card, on_ranks: OnRanks) -> None:
    setup = small_setup(card.name, ranks=ranks_of(card))
    for rank, states in enumerate(on_ranks(setup.ranks, states_after_two_steps, setup)):
        assert states == card.states(setup, rank)
