"""The evidence file of a rank in a convergence check: one JSON line per step, in a file next to the rank's log."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from collectors.files import open_to_append, open_to_read

SCHEMA_VERSION = 1

Sketch = tuple[float, float]
"""The norm of a tensor, and its dot product with a random direction that depends on the weight's name."""


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of one step of one rank.

    loss: the loss on the rank's own sequences; None if the rank computes none, or if it is not finite.
    is_finite: False if the loss is not finite.
    learning_rates: one for each parameter group of the optimizer; empty if the rank updates nothing.
    sequences: a fingerprint of each sequence that the rank read.
    statistics: means, then variances, of the batch normalisation's first channels; empty without batch normalisation,
    and if one of them is not finite.
    weights: a fingerprint of all weights before the step; None if the rank holds only some.
    initial: in the first step only: by weight, a sketch of the whole weight before training.
    gradients: by weight, a sketch of the whole gradient that the optimizer used, after clipping; only if finite.
    gradient_norm: the norm of all gradients before clipping; None if the rank computed none, or if it is not finite.
    updates: for each weight that the rank holds at least in part, a sketch of the whole weight's change.
    """

    step: int
    loss: float | None
    is_finite: bool = True
    learning_rates: list[float] = []
    sequences: list[str] = []
    statistics: list[float] = []
    weights: str | None = None
    initial: dict[str, Sketch] = {}
    gradients: dict[str, Sketch] = {}
    gradient_norm: float | None = None
    updates: dict[str, Sketch] = {}
    schema_version: int = SCHEMA_VERSION


class EvidenceFile:
    """A rank's evidence file, open for appending."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.fdopen(open_to_append(path_of(folder, rank)), "ab")

    def write(self, evidence: StepEvidence) -> None:
        self._file.write(msgspec.json.encode(evidence) + b"\n")
        self._file.flush()  # An unbuffered file would raise nothing if the disk filled up in the middle of a line.

    def close(self) -> None:
        self._file.close()


def path_of(folder: Path, rank: int) -> Path:
    """Return the path of a rank's evidence file in a run's folder."""
    return folder / f"rank{rank}.evidence.jsonl"


def read_evidence(folder: Path, rank: int) -> list[StepEvidence]:
    """Return all steps of a rank, in order.

    Raises:
        OSError: there is no such file.
        msgspec.DecodeError: a line is incomplete.
    """
    with open_to_read(path_of(folder, rank)) as file:
        return msgspec.json.Decoder(StepEvidence).decode_lines(file.read())
