"""The card of `copies`: how many bytes a second memory and bus move."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.cards.card import ELEMENT_BYTES, Card, Device, Needs, Option, Parity, Setup
from workloads.laws.ceilings import BUFFERS_TOUCHED, CopyKind

KINDS: Mapping[Device, tuple[CopyKind, ...]] = {
    "cpu": ("memory_copy", "memory_triad"),
    "cuda": ("device_copy", "host_to_device", "device_to_host", "host_to_device_pageable"),
}

SIZE_BYTES: Mapping[Device, int] = {"cpu": 256 << 20, "cuda": 1 << 30}
"""STREAM asks for buffers of at least four times the last cache: up to 64 MiB of it on a CPU, 256 MiB on a GPU."""


def size_bytes(setup: Setup) -> int:
    """Bytes of one buffer."""
    return int(setup.options["size_bytes"]) or SIZE_BYTES[setup.device]


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    size, element = size_bytes(setup), ELEMENT_BYTES[setup.precision]
    if size % element == 0:
        return []
    whole = size + element - size % element
    return [
        f"option size_bytes is {size}, and {setup.precision} has {element} bytes an element; {whole} would hold"
        " whole elements"
    ]


def _measurements(setup: Setup) -> int:
    return len(KINDS[setup.device])


def _working_bytes(setup: Setup, rank: int) -> int:
    """The buffers of one kind, since those of the one before are given back: three of a triad, two of all others."""
    return max(2, *(BUFFERS_TOUCHED[kind] for kind in KINDS[setup.device])) * size_bytes(setup)


CARD = Card(
    name="copies",
    kind="probe",
    summary="bytes a second within memory (copy, triad; on CUDA the GPU's own) and between host and GPU",
    version=1,
    cuda_version=2,
    options=(
        Option(
            name="size_bytes",
            default=0,
            minimum=0,
            help="of one buffer, at least 4 times the last cache; 0: 256 MiB on the CPU, 1 GiB on CUDA",
        ),
    ),
    needs=Needs(),
    parity=Parity(kind="none", reason="a probe trains nothing"),
    mesh=_mesh,
    refusals=_refusals,
    measurements=_measurements,
    working_bytes=_working_bytes,
)
