"""Setups and fakes for tests of probes: small, on the CPU, and without bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from workloads.cost_models.shape import Shape
from workloads.protocols import Elapsed, Quantity
from workloads.spec import Backend, Device, OptionValue, Precision, StrategySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallProbe:
    """A `ProbeSetup` with what the tests vary."""

    strategy: str
    options: Mapping[str, OptionValue]
    ranks: int = 1
    device: Device = "cpu"
    backend: Backend = "gloo"
    precision: Precision = "fp32"
    seed: int = 7
    steps: int = 3
    warm_up: int = 1

    @property
    def shape(self) -> Shape:
        """There is none."""
        raise AssertionError("a probe asked for the model's shape")

    @property
    def data_ranks(self) -> int:
        """There is no batch."""
        raise AssertionError("a probe asked for the shares of a batch")


def small_probe(
    spec: StrategySpec,
    options: Mapping[str, OptionValue] | None = None,
    *,
    ranks: int = 1,
    device: Device = "cpu",
    backend: Backend = "gloo",
    precision: Precision = "fp32",
) -> SmallProbe:
    """The probe with its default options, some replaced."""
    defaults = {option.name: option.default for option in spec.options}
    return SmallProbe(
        strategy=spec.name,
        options={**defaults, **(options or {})},
        ranks=ranks,
        device=device,
        backend=backend,
        precision=precision,
    )


@dataclass(slots=True)
class FakeRecord:
    """Keeps what it is given, of times those of the device."""

    taken: list[tuple[dict[Quantity, float], dict[str, str]]] = field(default_factory=list)

    def __call__(self, figures: Mapping[Quantity, float | Elapsed], **labels: str) -> None:
        self.taken.append(
            (
                {
                    quantity: value if isinstance(value, (int, float)) else value.elapsed_s
                    for quantity, value in figures.items()
                },
                labels,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeElapsed:
    """As on a CPU."""

    elapsed_s: float
    with_host_s: float | None = None
    why_with_host: str | None = None
    begun_ns: int | None = None


@dataclass(slots=True)
class FakeStopwatch:
    """Makes each call and finds it to take the seconds that it was told. during: called after each call."""

    elapsed_s: tuple[float, ...] = (9.0, 1.0, 2.0)
    during: Callable[[], object] = lambda: None
    asked: list[tuple[int, int]] = field(default_factory=list)

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> FakeElapsed:
        """The mean of the seconds."""
        return FakeElapsed(elapsed_s=fmean(self.times_s(call, warm_up, calls)))

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> FakeElapsed:
        """The median of the seconds."""
        return FakeElapsed(elapsed_s=median(self.times_s(call, warm_up, calls)))

    def times_s(self, call: Callable[[], object], warm_up: int, calls: int) -> list[float]:
        """The seconds, over and over."""
        self.asked.append((warm_up, calls))
        for _ in range(warm_up + calls):
            call()
            self.during()
        return [self.elapsed_s[number % len(self.elapsed_s)] for number in range(calls)]


class IdleStopwatch(FakeStopwatch):
    """Says that it made the calls, and made none."""

    def times_s(self, call: Callable[[], object], warm_up: int, calls: int) -> list[float]:
        """A second each."""
        return [1.0] * calls
