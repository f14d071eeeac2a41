"""A strategy's card as JSON has it."""

from __future__ import annotations

from bench.refusals import example, tried_refusals
from workloads.cards.card import Card


def card_fields(card: Card, *, is_whole: bool) -> dict[str, object]:
    """The card's facts. is_whole: with its refusals, which take a while to find, and an example."""
    return {
        "name": card.name,
        "kind": card.kind,
        "summary": card.summary,
        "version": card.version,
        "cuda_version": card.version_on("cuda"),
        "needs": card.needs.text(),
        "parity": card.parity.kind,
        "options": [
            {"name": option.name, "default": option.default, "allowed": option.allowed, "help": option.help}
            for option in card.options
        ],
        **({"refusals": tried_refusals(card), "example": example(card)} if is_whole else {}),
    }
