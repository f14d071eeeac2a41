"""What figures of offloading say where the rank computes on the host already."""

from __future__ import annotations

from workloads.cards.card import Setup


def offload_notes(setup: Setup) -> list[str]:
    """What a reader must know of the figures of a strategy that has the option `offload`."""
    if setup.options["offload"] and setup.device == "cpu":
        return ["offload on a CPU is control flow only: nothing moves, so its figures say nothing of offloading"]
    return []
