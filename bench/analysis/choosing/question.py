"""Turns the question of a choice into cases: each strategy on the model and ranks, with the options that the user set.

All strategies store weights alike, so that they do the same arithmetic: in bf16 like FSDP2's default, unless the user
sets `weights`. A strategy that refuses this keeps its own default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.analysis.choosing.candidates import training_specs
from bench.case import MOST, Case, find_spec, parse_options
from bench.errors import Misuse
from workloads.core.precision_options import WEIGHTS
from workloads.cost_models.shape import Shape
from workloads.spec import Backend, Device, OptionValue, Precision, StrategySpec

SAME_WEIGHTS = "bf16_compute"
"""How all strategies store weights in bf16: bf16 copies compute, and fp32 weights are updated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of which strategy, in which setup, trains this model best.

    strategies: to choose from; empty for all that train. options: `KEY=VALUE` texts for each of them; a strategy that
    lacks one of these options is left out.
    """

    shape: Shape
    ranks: int
    nodes: int
    device: Device
    backend: Backend
    precision: Precision
    strategies: Sequence[str] = ()
    options: Sequence[str] = ()

    def check_ranks(self) -> None:
        """Refuse numbers of ranks that no case may have.

        Raises:
            Misuse: there are too few or too many.
        """
        if not 1 <= self.ranks <= MOST["ranks"]:
            raise Misuse(f"ranks is {self.ranks}; it may be 1 to {MOST['ranks']}")

    def bases(self) -> tuple[list[Case], dict[str, OptionValue]]:
        """Return a case of each strategy, and the options that are the same in all of them.

        Raises:
            Misuse: a strategy or an option is unknown, or no strategy has all options.
        """
        specs = [find_spec(name) for name in self.strategies] or list(training_specs())
        if probes := [spec.name for spec in specs if spec.kind == "probe"]:
            raise Misuse(f"{probes[0]} is a probe and trains no model; choose among strategies (`observatory list`)")
        names = {text.partition("=")[0] for text in self.options}
        takers = [spec for spec in specs if names <= {option.name for option in spec.options}]
        if not takers:
            # The spec's own message names the nearest option, and the strategies that have it.
            parse_options(specs[0], self.options)
            raise Misuse(f"no strategy has all of the options {', '.join(sorted(names))}; set fewer")
        fixed: dict[str, OptionValue] = {}
        bases = []
        for spec in takers:
            values = parse_options(spec, self.options)
            fixed |= {name: values[name] for name in names}
            bases.append(self._base(spec, values))
        return bases, fixed

    def _base(self, spec: StrategySpec, values: Mapping[str, OptionValue]) -> Case:
        case = Case(
            strategy=spec.name,
            version=spec.version_on(self.device),
            ranks=self.ranks,
            model=self.shape,
            device=self.device,
            backend=self.backend,
            precision=self.precision,
            threads=1,
            trials=1,
            steps=1,
            warm_up=0,
            trace_steps=0,
            seed=0,
            options=values,
            nodes=self.nodes,
            bind=self.device == "cuda",
        )
        is_set = any(text.startswith(f"{WEIGHTS.name}=") for text in self.options)
        if self.precision != "bf16" or is_set or WEIGHTS.name not in values:
            return case
        # The common weights, unless the spec refuses them.
        rounded = replace(case, options={**case.options, WEIGHTS.name: SAME_WEIGHTS})
        refused = set(spec.all_refusals(rounded, is_here=False)) - set(spec.all_refusals(case, is_here=False))
        return case if any(WEIGHTS.name in reason for reason in refused) else rounded
