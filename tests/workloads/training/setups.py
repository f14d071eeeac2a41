"""Setups for tests of workloads: small, on the CPU, and without bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from workloads.cost_models.shape import Shape
from workloads.registry import spec_of
from workloads.spec import Backend, Device, OptionValue, Precision, StrategySpec

SMALL = Shape(layers=4, width=64, heads=4, kv_heads=2, mlp_width=128, vocabulary=64, sequence=16, batch=8)
"""Large enough for several gradient buckets of 0.1 MiB, and divisible by what strategies cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallSetup:
    """A `Setup` with what the tests vary."""

    strategy: str
    ranks: int
    shape: Shape
    precision: Precision
    options: Mapping[str, OptionValue]
    device: Device = "cpu"
    backend: Backend = "gloo"
    seed: int = 7

    @property
    def data_ranks(self) -> int:
        return spec_of(self.strategy).data_ranks(self)


def small_setup(
    strategy: str = "single",
    *,
    ranks: int = 1,
    shape: Shape = SMALL,
    precision: Precision = "fp32",
    options: Mapping[str, OptionValue] | None = None,
    device: Device = "cpu",
    backend: Backend = "gloo",
) -> SmallSetup:
    """The strategy with its default options, some replaced, and no worker processes unless asked for."""
    defaults = {option.name: option.default for option in spec_of(strategy).options}
    setup = SmallSetup(
        strategy=strategy,
        ranks=ranks,
        shape=shape,
        precision=precision,
        options={**defaults, "workers": 0, **(options or {})},
        device=device,
        backend=backend,
    )
    return replace(setup, options=spec_of(strategy).settled(setup))


def ranks_of(spec: StrategySpec) -> int:
    """Two ranks, or as near as the strategy's needs allow."""
    ranks = max(2, spec.needs.minimum_ranks)
    return ranks if spec.needs.maximum_ranks is None else min(ranks, spec.needs.maximum_ranks)
