"""Figures of offloading on a CPU are marked, whatever the strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workloads.training.setups import ranks_of, small_setup
from workloads.registry import CARDS
from workloads.spec import Card

OFFLOADING = [card for card in CARDS if "offload" in {option.name for option in card.options}]
EACH_CARD = pytest.mark.parametrize("card", OFFLOADING, ids=lambda card: card.name)


def test_strategies_that_divide_states_can_offload_them() -> None:
    assert {"zero2", "fsdp", "hsdp", "deepspeed"} <= {card.name for card in OFFLOADING}


@EACH_CARD
def test_offloading_on_a_cpu_says_that_nothing_moves(card: Card) -> None:
    setup = small_setup(card.name, ranks=ranks_of(card), options={"offload": True})
    (note,) = card.notes(setup)
    assert note.startswith("offload on a CPU is control flow only")


@EACH_CARD
def test_there_is_nothing_to_say_of_a_gpu_or_of_states_that_stay(card: Card) -> None:
    offloaded = small_setup(card.name, ranks=ranks_of(card), options={"offload": True})
    assert card.notes(replace(offloaded, device="cuda", backend="nccl")) == []
    assert card.notes(small_setup(card.name, ranks=ranks_of(card))) == []
