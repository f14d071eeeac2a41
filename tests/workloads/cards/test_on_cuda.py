"""What cards refuse of a GPU, told without one: what its backends cannot do, and what its compiler must not."""

from __future__ import annotations

import pytest

from tests.workloads.probes.small_probes import small_probe
from tests.workloads.setups import ranks_of, small_setup
from workloads.cards.card import Card
from workloads.cards.deepspeed import not_installed
from workloads.roster import CARDS, card_of

TRAINING = [card for card in CARDS if card.kind == "training" and (card.name != "deepspeed" or not not_installed())]
NO_MESSAGES = "backend gloo sends no tensor of a GPU from rank to rank; take --backend nccl, or --device cpu"


def by_name(card: Card) -> str:
    return card.name


@pytest.mark.parametrize("card", TRAINING, ids=by_name)
def test_gloo_is_refused_to_gpus_exactly_where_ranks_send_messages(card: Card) -> None:
    setup = small_setup(card.name, ranks=ranks_of(card), device="cuda", backend="gloo")
    # Messages of RPC go through the host's memory by another library.
    sends = any(each.collective == "send" and each.axis != "rpc" for each in card.transfers(setup))
    assert card.sends_messages(setup) == sends
    assert card.all_refusals(setup) == ([NO_MESSAGES] if sends else [])


@pytest.mark.parametrize(("name", "sends"), [("collectives", True), ("all_reduce", True), ("matmul", False)])
def test_probes_that_send_messages_are_refused_on_gloo_too(name: str, sends: bool) -> None:
    card = card_of(name)
    assert bool(card.all_refusals(small_probe(card, ranks=2, device="cuda"))) == sends


@pytest.mark.parametrize("card", TRAINING, ids=by_name)
def test_nccl_sends_messages_of_gpus(card: Card) -> None:
    assert card.all_refusals(small_setup(card.name, ranks=ranks_of(card), device="cuda", backend="nccl")) == []


def test_a_ring_of_one_rank_sends_nothing() -> None:
    assert card_of("ring_attention").all_refusals(small_setup("ring_attention", device="cuda")) == []


def test_what_is_wrong_on_any_device_is_told_first() -> None:
    setup = small_setup("gpipe", ranks=3, device="cuda")
    assert card_of("gpipe").all_refusals(setup) == card_of("gpipe").refusals(setup) != []
