"""The bytes of training state that a card declares are those that its ranks hold."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from torch import Tensor

from tests.ranks import OnRanks
from tests.workloads.setups import SmallSetup, ranks_of, small_setup
from tests.workloads.training_runs import make_ready
from workloads.cards.card import Card
from workloads.laws.terms import States
from workloads.roster import CARDS


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind the tensors, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def states_after_two_steps(setup: SmallSetup) -> States:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    weights = list(ready.workload.model.parameters())
    return States(
        parameters_bytes=held_bytes(weights),
        gradients_bytes=held_bytes(weight.grad for weight in weights if weight.grad is not None),
        optimizer_bytes=held_bytes(
            value for state in ready.workload.optimizer.state.values() for value in state.values()
        ),
    )


@pytest.mark.parametrize("card", [card for card in CARDS if card.kind == "training"], ids=lambda card: card.name)
def test_ranks_hold_the_bytes_that_the_card_declares(card: Card, on_ranks: OnRanks) -> None:
    setup = small_setup(card.name, ranks=ranks_of(card))
    for states in on_ranks(setup.ranks, states_after_two_steps, setup):
        assert states == card.states(setup)
