"""Live bytes over a stretch of a step: the net change, and the peak above the start.

Stretches follow each other and repeat, so that adding up a step of many layers and microbatches costs no more than one
of few. Knows neither models nor strategies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

Kind = Literal["parameters", "gradients", "activations", "temporary"]
"""What a tensor counts as; see `workloads.cost_models.peak_memory.Prediction`. parameters: weights that are gathered or
copied, in addition to those that a rank keeps."""


class LiveBytes(NamedTuple):  # A plan of a large cluster makes some 100,000.
    """Live bytes by kind, or their change."""

    parameters: int = 0
    gradients: int = 0
    activations: int = 0
    temporary: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.parameters + self.gradients + self.activations + self.temporary

    def plus(self, other: LiveBytes, times: int = 1) -> LiveBytes:
        """Return the sum of this and `times` times the other."""
        return LiveBytes(
            self.parameters + times * other.parameters,
            self.gradients + times * other.gradients,
            self.activations + times * other.activations,
            self.temporary + times * other.temporary,
        )


NO_BYTES = LiveBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a step. net: live bytes at its end minus those at its beginning. peak: the most in between.

    Both are relative to the beginning, so that no peak is below 0 in total.
    """

    net: LiveBytes = NO_BYTES
    peak: LiveBytes = NO_BYTES

    def then(self, *others: Stretch) -> Stretch:
        """Return this stretch and, after it, the others.

        Example: a net of 3 with a peak of 5, then a net of -1 with a peak of 4: a net of 2 with a peak of 3 + 4.
        """
        net, peak = self.net, self.peak
        for other in others:
            later = net.plus(other.peak)
            peak = later if later.total > peak.total else peak
            net = net.plus(other.net)
        return Stretch(net=net, peak=peak)

    def times(self, count: int) -> Stretch:
        """Return the stretch repeated. Its highest peak is that of the first or of the last repetition."""
        if count == 0:
            return Stretch()
        last = NO_BYTES.plus(self.net, count - 1).plus(self.peak)
        peak = last if last.total > self.peak.total else self.peak
        return Stretch(net=NO_BYTES.plus(self.net, count), peak=peak)


STILL = Stretch()
"""A stretch in which nothing happens."""


def in_turn(stretches: Iterable[Stretch]) -> Stretch:
    """Return the stretches one after the other."""
    return Stretch().then(*stretches)


class Tape:
    """Records a stretch tensor by tensor, by name. A tensor of 0 bytes stands for one that torch does not make."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[Kind, int]] = {}
        self._net = NO_BYTES._asdict()
        self._net_total = 0
        self._peak = NO_BYTES
        self._peak_total = 0

    def make(self, name: str, size_bytes: int, kind: Kind = "activations") -> Self:
        """Make a tensor.

        Raises:
            ValueError: one of this name lives.
        """
        if name in self._live:
            raise ValueError(f"{name} lives already")
        self._live[name] = kind, size_bytes
        return self.change(size_bytes, kind)

    def free(self, *names: str) -> Self:
        """Free tensors that this stretch made; KeyError for one that does not live."""
        for name in names:
            kind, size_bytes = self._live.pop(name)
            self.change(-size_bytes, kind)
        return self

    def relabel(self, name: str, other: str) -> Self:
        """Let a tensor live on under another name; KeyError if it does not live."""
        self._live[other] = self._live.pop(name)
        return self

    def change(self, size_bytes: int, kind: Kind = "activations") -> Self:
        """Make or free bytes that have no name here, for example a tensor that another stretch made."""
        self._net[kind] += size_bytes
        self._net_total += size_bytes
        if self._net_total > self._peak_total:
            self._peak, self._peak_total = LiveBytes(**self._net), self._net_total
        return self

    def brief(self, size_bytes: int, kind: Kind = "temporary") -> Self:
        """Make a tensor and free it at once."""
        return self.change(size_bytes, kind).change(-size_bytes, kind)

    def play(self, stretch: Stretch) -> Self:
        """Append another stretch."""
        later_total = self._net_total + stretch.peak.total
        if later_total > self._peak_total:
            self._peak, self._peak_total = LiveBytes(**self._net).plus(stretch.peak), later_total
        for kind, size_bytes in stretch.net._asdict().items():
            self._net[kind] += size_bytes
        self._net_total += stretch.net.total
        return self

    def stretch(self) -> Stretch:
        """Return what was recorded."""
        return Stretch(net=LiveBytes(**self._net), peak=self._peak)
