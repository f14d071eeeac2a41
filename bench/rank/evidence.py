"""What a rank of a convergence check used and saw in each step: lines of a file beside its log."""

from __future__ import annotations

from pathlib import Path

import msgspec

SCHEMA_VERSION = 1

Sketch = tuple[float, float]
"""The norm of a tensor, and its product with a direction that belongs to the weight's name."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank.

    loss: of the rank's own sequences; None where it computes none, or one that is not finite.
    is_finite: False where the loss is not.
    learning_rates: that the optimizer's groups used; empty where its rank updates nothing.
    sequences: a fingerprint of each sequence that the rank read.
    statistics: of the batch normalisation, means and then variances of its first channels; empty without one, and
    where one of them is not finite.
    weights: a fingerprint of all weights as the step found them; None where the rank holds only some.
    initial: of the first step only: by weight, a sketch of the whole weight as the training began.
    gradients: by weight, a sketch of the whole gradient as the optimizer used it, clipped, where that is finite.
    gradient_norm: of all gradients before clipping; None where the rank took none.
    updates: by weight that the rank holds, or holds a part of: a sketch of what the step changed of the whole.
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
    """A rank's evidence, to append to."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = path_of(folder, rank).open("ab", buffering=0)

    def write(self, seen: Seen) -> None:
        """Append one step as one line."""
        self._file.write(msgspec.json.encode(seen) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def path_of(folder: Path, rank: int) -> Path:
    """Where a rank of the run in this folder writes its evidence."""
    return folder / f"rank{rank}.evidence.jsonl"


def read_evidence(folder: Path, rank: int) -> list[Seen]:
    """All steps of a rank, in order.

    Raises:
        OSError: there is no such file.
        msgspec.DecodeError: a line is not whole.
    """
    return msgspec.json.Decoder(Seen).decode_lines(path_of(folder, rank).read_bytes())
