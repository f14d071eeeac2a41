"""Every strategy there is, one line each: its card. Imports no torch; a rank loads the module of the card's name."""

from __future__ import annotations

from workloads.cards import (
    all_reduce,
    collectives,
    copies,
    ddp,
    deepspeed,
    fsdp,
    hsdp,
    matmul,
    parameter_server,
    single,
    zero1,
    zero2,
)
from workloads.cards.card import Card

CARDS: tuple[Card, ...] = (
    single.CARD,
    ddp.CARD,
    zero1.CARD,
    zero2.CARD,
    fsdp.CARD,
    hsdp.CARD,
    deepspeed.CARD,
    parameter_server.CARD,
    collectives.CARD,
    all_reduce.CARD,
    matmul.CARD,
    copies.CARD,
)


def card_of(name: str) -> Card:
    """The card of that name.

    Raises:
        KeyError: no strategy is called so.
    """
    return {card.name: card for card in CARDS}[name]
