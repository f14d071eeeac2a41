"""Every strategy there is, one line each: its card. Imports no torch; a rank loads the module of the card's name."""

from __future__ import annotations

from workloads.cards import ddp, single
from workloads.cards.card import Card

CARDS: tuple[Card, ...] = (
    single.CARD,
    ddp.CARD,
)


def card_of(name: str) -> Card:
    """The card of that name.

    Raises:
        KeyError: no strategy is called so.
    """
    return {card.name: card for card in CARDS}[name]
