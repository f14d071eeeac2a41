"""What strategies that divide products by tensors share: the option that divides the stream too, and their refusals."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from workloads.cards.card import Option, Setup
from workloads.cards.training_options import COLLECTIVES_IN_GRAPHS, graph_refusals

SEQUENCE_PARALLEL = Option(
    name="sequence_parallel",
    default=False,
    help="divide the residual stream and its norms by positions: all_gather and reduce_scatter in place of all_reduce",
)


def division_refusals(setup: Setup, *, ranks: int, option: str | None = None) -> Iterator[str]:
    """Why these ranks cannot divide the model's products equally, with the numbers that could.

    option: that says how many they are, where it is not all.
    """
    shape = setup.shape
    divided = {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "mlp_width": shape.mlp_width,
        "vocabulary": shape.vocabulary,
    }
    if setup.options[SEQUENCE_PARALLEL.name]:
        divided["sequence"] = shape.sequence
    uneven = [f"{name} {size}" for name, size in divided.items() if size % ranks]
    if uneven:
        most = gcd(*divided.values())
        fitting = [str(count) for count in range(1, most + 1) if most % count == 0]
        sharing, fit = (f"{ranks} ranks", "ranks would fit") if option is None else (f"{option} {ranks}", "would fit")
        yield (
            f"{' and '.join(uneven)} cannot be shared equally by {sharing}; {' or '.join(fitting)} {fit}"
            f" {', '.join(divided)}"
        )


def compile_refusals(setup: Setup, *, ranks: int) -> Iterator[str]:
    """Why divided blocks cannot be compiled."""
    options = setup.options
    if ranks > 1:
        yield from graph_refusals(setup, COLLECTIVES_IN_GRAPHS)
    if ranks > 1 and options["compile"] != "none" and options["checkpoint"] == "full":
        yield (
            f"option compile is {options['compile']} with checkpoint=full, and torch 2.13 cannot compile blocks that"
            " are divided and run again whole; take checkpoint=selective or none"
        )
