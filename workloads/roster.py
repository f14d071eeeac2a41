"""Every strategy there is, one line each: its card. Imports no torch; a rank loads the module of the card's name."""

from __future__ import annotations

from workloads.cards import (
    all_reduce,
    collectives,
    copies,
    ddp,
    deepspeed,
    fsdp,
    gpipe,
    hsdp,
    interleaved,
    matmul,
    one_f_one_b,
    parameter_server,
    pipeline_naive,
    ring_attention,
    single,
    tensor_parallel,
    three_d,
    ulysses,
    zero1,
    zero2,
    zero_bubble,
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
    tensor_parallel.CARD,
    pipeline_naive.CARD,
    gpipe.CARD,
    one_f_one_b.CARD,
    interleaved.CARD,
    zero_bubble.CARD,
    ring_attention.CARD,
    ulysses.CARD,
    three_d.CARD,
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
