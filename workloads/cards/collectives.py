"""The card of `collectives`: how fast the library's collectives are, size by size, as nccl-tests measures them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from workloads.cards.card import ELEMENT_BYTES, Backend, Card, Needs, Option, OptionValue, Parity, Setup
from workloads.laws.terms import Collective
from workloads.parts.collective_sizes import (
    CHECK_BYTES,
    COLLECTIVES,
    Counts,
    counts,
    held_elements,
    least_bytes,
    sweep,
)

LARGEST_BYTES: Mapping[Backend, int] = {"gloo": 16 * 2**20, "nccl": 2**30}
"""By default. Where the link's bandwidth is reached: a socket's at some MiB, NVLink's beyond 256 MiB on 8 GPUs."""


def chosen_collectives(setup: Setup) -> list[Collective]:
    """Those that the case asks for, each once; "all" are those that can run on the case's ranks."""
    names = _names(setup)
    if names == ["all"]:
        return [collective for collective in COLLECTIVES if setup.ranks >= _least_ranks(collective)]
    return [collective for collective in COLLECTIVES if collective in names]


def counted_sizes(setup: Setup, collective: Collective) -> list[Counts]:
    """What each call of the sweep moves, ascending."""
    sizes = sweep(int(setup.options["min_bytes"]), _largest(setup), int(setup.options["factor"]))
    return [counts(collective, size_bytes, setup.ranks, ELEMENT_BYTES[setup.precision]) for size_bytes in sizes]


def _largest(setup: Setup) -> int:
    return int(setup.options["max_bytes"]) or LARGEST_BYTES[setup.backend]


def _settled(setup: Setup) -> Mapping[str, OptionValue]:
    return {**setup.options, "max_bytes": _largest(setup)}


def _least_ranks(collective: Collective) -> int:
    return 2 if collective == "send" else 1


def _names(setup: Setup) -> list[str]:
    return [name.strip() for name in str(setup.options["collectives"]).split(",")]


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    return [*_name_refusals(setup), *_size_refusals(setup)]


def _sends_messages(setup: Setup) -> bool:
    return "send" in chosen_collectives(setup)


def _name_refusals(setup: Setup) -> list[str]:
    names = _names(setup)
    if names == ["all"]:
        return []
    reasons = []
    for name in names:
        if name not in COLLECTIVES:
            near = difflib.get_close_matches(name, COLLECTIVES, n=1, cutoff=0.5)
            offer = f'did you mean "{near[0]}"? ' if near else ""
            reasons.append(
                f'collective "{name}" is unknown; {offer}it may be of {", ".join(COLLECTIVES)}, or "all" alone'
            )
    reasons += [
        f"{collective} goes to another rank and ranks is {setup.ranks}; take {_least_ranks(collective)} or leave it out"
        for collective in chosen_collectives(setup)
        if setup.ranks < _least_ranks(collective)
    ]
    return reasons


def _size_refusals(setup: Setup) -> list[str]:
    least, most = int(setup.options["min_bytes"]), _largest(setup)
    reasons = []
    if least > most:
        reasons.append(f"option min_bytes is {least} and max_bytes {most}; min_bytes may be at most max_bytes")
    needed = {
        collective: least_bytes(collective, setup.ranks, ELEMENT_BYTES[setup.precision])
        for collective in chosen_collectives(setup)
    }
    hungriest = max(needed, key=lambda collective: needed[collective], default=None)
    if hungriest is not None and least < needed[hungriest]:
        reasons.append(
            f"option min_bytes is {least}; {hungriest} in {setup.precision} on {setup.ranks} ranks moves nothing below"
            f" {needed[hungriest]}, which would do"
        )
    return reasons


def _measurements(setup: Setup) -> int:
    return sum(len(counted_sizes(setup, collective)) for collective in chosen_collectives(setup))


def _working_bytes(setup: Setup, rank: int) -> int:
    """Both buffers of the collective that needs most, and the check; not what the library keeps for itself."""
    held = [
        held_elements(collective, counts, rank)
        for collective in chosen_collectives(setup)
        for counts in counted_sizes(setup, collective)
    ]
    return max(held, default=0) * ELEMENT_BYTES[setup.precision] + CHECK_BYTES


CARD = Card(
    name="collectives",
    kind="probe",
    summary="the library's collectives, size by size, as nccl-tests measures them",
    version=1,
    cuda_version=2,
    options=(
        Option(
            name="collectives",
            default="all",
            help=f"{', '.join(COLLECTIVES)}, with commas between; all: on one rank all but send",
        ),
        Option(name="min_bytes", default=1024, minimum=1, help="size of the first, as nccl-tests' -b"),
        Option(
            name="max_bytes",
            default=0,
            minimum=0,
            help="size that none exceeds, as nccl-tests' -e; 0: 16 MiB on gloo, 1 GiB on NCCL",
        ),
        Option(name="factor", default=4, minimum=2, help="from one size to the next, as nccl-tests' -f"),
    ),
    needs=Needs(),
    parity=Parity(kind="none", reason="a probe trains nothing"),
    mesh=_mesh,
    settled=_settled,
    refusals=_refusals,
    sends_messages=_sends_messages,
    measurements=_measurements,
    working_bytes=_working_bytes,
)
