"""The card of `matmul`: how many operations a second a device reaches on matrix products, by size."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.cards.card import ELEMENT_BYTES, Card, Device, Needs, Option, Parity, Setup

LARGEST: Mapping[Device, int] = {"cpu": 1024, "cuda": 16384}
"""Large enough for the best rate of one CPU core, and for dozens of tiles for each unit of a GPU."""


def sizes(setup: Setup) -> tuple[int, ...]:
    """Rows and columns of the square matrices that are multiplied, ascending."""
    found = []
    size, largest = int(setup.options["min_size"]), _largest(setup)
    while size <= largest:
        found.append(size)
        size *= int(setup.options["factor"])
    return tuple(found)


def _largest(setup: Setup) -> int:
    return int(setup.options["max_size"]) or LARGEST[setup.device]


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    least, largest = setup.options["min_size"], _largest(setup)
    if sizes(setup):
        return []
    origin = "" if setup.options["max_size"] else f", its default on {setup.device}"
    return [f"option min_size is {least} and max_size {largest}{origin}; max_size={least} would measure one size"]


def _measurements(setup: Setup) -> int:
    return len(sizes(setup))


def _working_bytes(setup: Setup, rank: int) -> int:
    """Two factors and their product, of the largest size; a library's own workspace is not counted."""
    return 3 * max(sizes(setup), default=0) ** 2 * ELEMENT_BYTES[setup.precision]


CARD = Card(
    name="matmul",
    kind="probe",
    summary="FLOP/s that a device reaches on square matrix products, by size, at the given precision",
    version=1,
    cuda_version=2,
    options=(
        Option(name="min_size", default=256, minimum=1, help="rows and columns of the smallest matrices"),
        Option(
            name="max_size",
            default=0,
            minimum=0,
            help=f"largest that is measured; 0: {LARGEST['cpu']} on the CPU, {LARGEST['cuda']} on CUDA",
        ),
        Option(name="factor", default=2, minimum=2, help="from one size to the next"),
    ),
    needs=Needs(),
    parity=Parity(kind="none", reason="a probe trains nothing"),
    mesh=_mesh,
    refusals=_refusals,
    measurements=_measurements,
    working_bytes=_working_bytes,
)
