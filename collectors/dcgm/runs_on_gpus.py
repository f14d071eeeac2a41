"""Which runs are on which GPU, by the files in which dcgm-exporter reads it."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.catalogue.placement import RANK_GPU
from collectors.metric import Sample


def runs_by_file(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """The runs of each GPU that has one, by what a GPU's job file is called: "3", or "3.1" for an instance of MIG.

    samples: what is shown of the runs that go on, among it where their ranks compute.
    """
    found: dict[str, set[str]] = {}
    for sample in samples:
        if sample.metric == RANK_GPU.name:
            file = _file_of(sample.labels["gpu"], sample.labels["slice"])
            found.setdefault(file, set()).add(sample.labels["run"])
    return {file: frozenset(runs) for file, runs in found.items()}


def _file_of(gpu: str, part: str) -> str:
    """Compute instances share the file of their GPU instance, whose number stands first."""
    return f"{gpu}.{part.partition('/')[0]}" if part else gpu
