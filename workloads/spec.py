"""`StrategySpec`: everything known about a strategy or probe without running it or importing torch."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import Weights, paper_states
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import Pipeline
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import StageTransfers, States, Transfer, replicated_states

# A rank's share of each batch, which follows from the device mesh.

DATA_AXES = ("data", "replicate", "shard")
"""Mesh axes whose ranks train on different sequences; ranks that differ on any other axis share theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShare:
    """A rank's share of each batch: number `rank`, counted from 0, of `ranks` equal shares."""

    rank: int
    ranks: int


def share_in_mesh(axes: Mapping[str, int], rank: int) -> DataShare:
    """Return the share of a rank in a mesh over all ranks, whose last axis runs fastest.

    axes: name and size of each axis, outermost first.
    Example: rank 5 of {"data": 4, "tensor": 2} is at data 2, tensor 1, and trains on share 2 of 4.
    """
    share, stride = DataShare(rank=0, ranks=1), 1
    for name, size in reversed(list(axes.items())):
        if name in DATA_AXES:
            # The inner data axes seen so far have share.ranks positions: each step along this one skips them all.
            position = rank // stride % size
            share = DataShare(rank=share.rank + position * share.ranks, ranks=share.ranks * size)
        stride *= size
    return share


Device = Literal["cpu", "cuda"]
Backend = Literal["gloo", "nccl"]
ChosenPrecision = Literal["fp32", "bf16", "fp16"]
"""Arithmetic precision that the project's own workloads can compute in."""
Precision = ChosenPrecision | Literal["unknown"]
"""unknown: for a watched run, whose program is not inspected."""
SaveMode = Literal["sync", "async"]
"""Training waits until a checkpoint is on disk (sync), or only until it is copied to the host's memory (async)."""
OptionValue = bool | int | float | str
WorkloadKind = Literal["training", "probe", "watched"]
"""training: optimizer steps of a model. probe: a measurement of the machine, which has no model. watched: a user's own
program, whose model, options and costs are unknown."""


class Setup(Protocol):
    """What a spec and a workload read of a case.

    data_ranks: the number of shares that a batch is divided into; see `StrategySpec.data_ranks`.
    shape: of the model; a probe has no model and must not read it.
    """

    @property
    def strategy(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def data_ranks(self) -> int: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def device(self) -> Device: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def seed(self) -> int: ...
    @property
    def options(self) -> Mapping[str, OptionValue]: ...


UNSETTLED = "auto"
"""Value of an option whose default depends on the setup; see `StrategySpec.settled`."""

LARGEST = 2**63 - 1
"""The largest whole number that a run's files and tensors can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Values of an option that `observatory choose` compares; an option without `Search` has its default there.

    values: ranks: the divisors of the number of ranks; batch: the divisors of the batch.
    falls: a rank holds no more at a later value than at an earlier one, all else being equal; always true of `batch`.
    is_late: compared only around the best setup of a strategy, for options that change little.
    """

    values: Literal["ranks", "batch"] | tuple[OptionValue, ...]
    falls: bool = False
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a strategy; its type is that of its default.

    choices: the allowed values of a text option.
    minimum: the smallest number allowed.
    added_later: the strategy has stored results from before the option. A setup without it has `value_before`, and a
        case's key leaves out this value, so that the series of those results continue.
    before: the value in those results, or in results of earlier definitions in which nobody chose one; None if it is
        the default.
    formerly: the option's name in older cases and commands.
    search: values that `observatory choose` compares.
    """

    name: str
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    added_later: bool = False
    before: OptionValue | None = None
    formerly: str | None = None
    search: Search | None = None

    def of(self, setup: Setup) -> OptionValue:
        """Return the setup's value, or `value_before` if the setup is older than the option."""
        options = setup.options
        if self.name not in options and self.formerly is not None and self.formerly in options:
            return options[self.formerly]
        return options.get(self.name, self.value_before) if self.added_later else options[self.name]

    @property
    def value_before(self) -> OptionValue:
        """The value in results from before the option."""
        return self.default if self.before is None else self.before

    @property
    def allowed(self) -> str:
        """Allowed values, in words."""
        if isinstance(self.default, bool):
            return "true or false"
        if self.choices:
            return ", ".join(self.choices)
        kind = {int: "a whole number", float: "a number", str: "text"}[type(self.default)]
        return kind if self.minimum is None else f"{kind} of at least {self.minimum:g}"

    def parse(self, text: str) -> OptionValue:
        """Return the value that the text means.

        Raises:
            ValueError: the text is not of the option's type, or is not allowed.
        """
        refused = ValueError(f'option {self.name} is "{text}"; it may be {self.allowed}')
        if isinstance(self.default, bool):
            if text.lower() not in ("true", "false"):
                raise refused
            return text.lower() == "true"
        try:
            value = type(self.default)(text)
        except ValueError:
            raise refused from None
        if isinstance(value, str):
            is_allowed = not self.choices or value in self.choices
        else:
            # NaN fails every comparison, so it is also refused.
            most = LARGEST if isinstance(value, int) else sys.float_info.max
            is_allowed = abs(value) <= most and (self.minimum is None or value >= self.minimum)
        if not is_allowed:
            raise refused
        return value


def nearest_multiples(number: int, divisor: int) -> str:
    """Return the multiples of the divisor just below and above a number that is not one, without 0, for a message.

    Example: 10 and 4 give "8 or 12", 3 and 4 give "4".
    """
    lower = number - number % divisor
    return f"{lower} or {lower + divisor}" if lower else str(divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Ranks and devices that a strategy needs."""

    minimum_ranks: int = 1
    maximum_ranks: int | None = None
    devices: tuple[Device, ...] = ("cpu", "cuda")

    def text(self) -> str:
        """Return the needs in words, for people."""
        if self.minimum_ranks == self.maximum_ranks:
            ranks = f"{self.minimum_ranks} rank" + ("s" if self.minimum_ranks > 1 else "")
        elif self.maximum_ranks is None:
            ranks = f"{self.minimum_ranks} or more ranks"
        else:
            ranks = f"{self.minimum_ranks} to {self.maximum_ranks} ranks"
        return f"{ranks}; {' or '.join(self.devices)}"


ELEMENT_BYTES: Mapping[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of one element."""

LIMITS: Mapping[Precision, float] = {"fp32": 5e-6, "fp16": 2e-3, "bf16": 3e-2}
"""Largest relative difference from `single` (norm of the difference over norm), where only the order of additions
differs."""
HALF_WEIGHTS_LIMIT = 6e-3
"""The same limit where both compute with weights in bf16. Measured: 2.9e-3 between one rank and 2, 4 and 8; 1.3e-2
between this and autocast."""
FP8_WEIGHTS_LIMIT = 6e-3
"""The same limit where both compute with weights=fp8. Measured: 2.8e-3 on 2 and 4 ranks; 8.5e-2 between this and
bf16_compute. Ring attention is not comparable: 5.3e-2, because e4m3 turns small differences in rounding into whole
steps."""
DIVIDED_SUMS_LIMIT = 1.5e-2
"""The same limit where ranks also round their partial sums of a product or of attention before these are added.
Measured: 1.03e-2 and 7.5e-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How the strategy's losses and gradients compare with those of `single`; the parity test reads it.

    kind: exact: equal within `limits`, for each of `variants` (options that must not change the result); none: not
        comparable, for `reason`.
    half_weights_limit: in bf16, if the option `weights` is not autocast, for one gradient from equal weights.
    """

    kind: Literal["exact", "none"] = "exact"
    limits: Mapping[Precision, float] = field(default_factory=lambda: LIMITS)
    half_weights_limit: float = HALF_WEIGHTS_LIMIT
    variants: tuple[Mapping[str, OptionValue], ...] = ({},)
    reason: str = ""


class StrategySpec(ABC):
    """The spec of a strategy or probe: its options, needs and refusals, and the terms of its cost model.

    A subclass sets the attributes and overrides the methods in which it differs. By default a training is data-parallel
    over all ranks and keeps the whole model on each of them. A spec holds no state.

    version: of the definition; results of a changed workload form a new series, which is not compared with older ones.
    cuda_version: of the definition on CUDA, if only that changed; None if it is `version`.
    """

    name: str
    kind: WorkloadKind = "training"
    summary: str
    version: int = 2  # Weights follow from the seed by a hash; before, torch's generator drew them.
    cuda_version: int | None = None
    options: tuple[Option, ...]
    needs: Needs = Needs()
    parity: Parity

    # What a setup means, and whether it runs.

    def missing_packages(self) -> list[str]:
        """Return why ranks here cannot import the strategy, with what would help; empty if they can.

        It covers only this installation; `refusals` covers what runs nowhere.
        """
        return []

    def missing_here(self, setup: Setup) -> list[str]:
        """Return what this installation lacks for the setup, with what would help; empty if ranks here can run it.

        By default, what it lacks for any setup: see `missing_packages`.
        """
        return self.missing_packages()

    @abstractmethod
    def refusals(self, setup: Setup) -> list[str]:
        """Return why this setup would be wrong or hang, with what would work; empty if it runs.

        Callers use `all_refusals`, which adds what follows from the rest of the spec.
        """

    def all_refusals(self, setup: Setup, *, is_here: bool = True) -> list[str]:
        """Return why this setup would be wrong or hang, each with what would work; empty if it runs.

        is_here: also say what this installation lacks; False for a machine that is not here.
        """
        if reasons := self.refusals(setup) or (self.missing_here(setup) if is_here else []):
            return reasons
        if setup.device == "cuda" and setup.backend == "gloo" and self.sends_messages(setup):
            # ProcessGroupGloo gives a GPU's pointer to the host's sockets; its collectives copy to the host and back.
            return ["backend gloo cannot send GPU tensors from rank to rank; use --backend nccl, or --device cpu"]
        return []

    def incomparable(self, setup: Setup) -> str | None:
        """Return why a setup of a strategy with parity is not comparable with `single`, with what would be; or None."""
        return None

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        """Return the options of a case, with the defaults that depend on the setup filled in.

        A case holds these, so that its key names what was measured.
        """
        if setup.options.get("weights") != UNSETTLED:
            return setup.options
        return {**setup.options, "weights": self.default_weights(setup)}

    def default_weights(self, setup: Setup) -> Weights:
        """Return the value of the option `weights` if the user sets none."""
        return "autocast"

    def options_in_key(self, values: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """Return the values that distinguish series of results: all except each later option's `value_before`."""
        later = {option.name: option.value_before for option in self.options if option.added_later}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    def version_on(self, device: Device) -> int:
        """Return the version of the definition on a device."""
        return self.version if device == "cpu" or self.cuda_version is None else self.cuda_version

    def notes(self, setup: Setup) -> list[str]:
        """Return what a reader of the run's figures must know about this setup."""
        return []

    # Ranks and their groups.

    def mesh(self, setup: Setup) -> dict[str, int]:
        """Return the axes of the device mesh and their sizes, outermost first; their product is the number of ranks."""
        return {"data": setup.ranks}

    def data_share(self, setup: Setup, rank: int) -> DataShare | None:
        """Return the share of each batch that a rank trains on; None if it trains on none."""
        return share_in_mesh(self.mesh(setup), rank)

    def data_ranks(self, setup: Setup) -> int:
        """Return the number of shares that a batch is divided into."""
        shares = (self.data_share(setup, rank) for rank in range(setup.ranks))
        return next(share.ranks for share in shares if share is not None)

    def training_ranks(self, setup: Setup) -> int:
        """Return how many ranks share the work of a batch, whether by sequences, tensors, layers or positions.

        It is the number of ranks with a `data_share`; a spec whose ranks do not all have one also overrides this.
        """
        return setup.ranks

    def sends_messages(self, setup: Setup) -> bool:
        """Whether ranks exchange tensors by send and receive."""
        return False

    def high_priority_axes(self, setup: Setup) -> tuple[str, ...]:
        """Return the axes of the mesh whose groups have a stream of high priority on NCCL."""
        return ()

    def has_second_communicator(self, setup: Setup) -> bool:
        """Whether a thread uses a communicator of its own while backward runs; backward must use no other on NCCL."""
        return False

    def pipeline(self, setup: Setup) -> Pipeline | None:
        """Return the pipeline of the strategy's stages; None if it has none."""
        return None

    # Cost model of training; the terms are those of `workloads.cost_models.terms`.

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        """Return the transfers of a step, which all ranks share."""
        return ()

    def stage_transfers(self, setup: Setup, stage: int) -> StageTransfers:
        """Return the transfers of a step that run within the actions of a stage; none without stages.

        `transfers` includes them if the rank that transfers most holds this stage.
        """
        return StageTransfers()

    def update_transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        """Return the transfers of a pipeline's step that run after all actions of the rank that transfers most."""
        return tuple(transfer for transfer in self.transfers(setup) if transfer.collective != "send")

    def states(self, setup: Setup, rank: int) -> States:
        """Return the parameters, gradients and optimizer states that a rank keeps."""
        return replicated_states(setup.shape)

    def states_not_covered(self, setup: Setup) -> Absent | None:
        """Return why `states` is only an estimate for this setup; None if the cost model covers it."""
        return None

    def most_states(self, setup: Setup) -> States:
        """Return each part of the states at its maximum over the ranks."""
        ranks = [self.states(setup, rank) for rank in range(setup.ranks)]
        return States(
            parameters_bytes=max(states.parameters_bytes for states in ranks),
            gradients_bytes=max(states.gradients_bytes for states in ranks),
            optimizer_bytes=max(states.optimizer_bytes for states in ranks),
        )

    def paper_states(self, setup: Setup) -> States:
        """Return a rank's states as the paper counts them, the same on all ranks."""
        return paper_states(setup.shape.parameters(), stage=0, data_ranks=1)

    def gathered_bytes(self, setup: Setup, rank: int) -> int:
        """Return the bytes of whole weights that a rank of a sharded model holds at once in a step, at least."""
        return 0

    def unreduced_bytes(self, setup: Setup, rank: int) -> int:
        """Return the bytes of whole gradients that a rank of a sharded model holds until the last microbatch reduces
        them."""
        return 0

    def peak(self, setup: Setup) -> Prediction | Absent:
        """Predict the live tensors of the rank that holds most, at the peak of a step."""
        return Absent(reason=f"no cost model predicts which tensors of {setup.strategy} live at the peak of a step")

    def paper_activations(self, setup: Setup) -> int | Absent | None:
        """Return the activations of the rank that holds most, in bytes, as the papers count them.

        None: as for a microbatch of the whole model.
        """
        return None

    def attention_pairs(self, setup: Setup) -> tuple[int, ...]:
        """Return the query-key pairs that each rank attends in a step's forward, of all heads and layers.

        Empty where the workload does not count them.
        """
        return ()

    # Costs of a probe.

    def measurements(self, setup: Setup) -> int:
        """Return how many measurements each rank records."""
        return 0

    def working_bytes(self, setup: Setup, rank: int) -> int:
        """Return the bytes that a rank holds at once; a training rank needs at least its states."""
        return 0


# Runs of users' own programs.

WATCHED = "watched"
"""The strategy of every watched run."""


class WatchedSpec(StrategySpec):
    """A run of a user's own program under `observatory watch`; hidden, because it cannot be run by name.

    It has no model and no cost model; the run's summary says what its figures are based on.
    """

    name = WATCHED
    kind = "watched"
    summary = "a user's own program, watched"
    version = 1
    options = ()
    parity = Parity(kind="none", reason="the program is not ours, and nothing says what one rank of it would compute")

    def refusals(self, setup: Setup) -> list[str]:
        """Refuse every setup: the project does not start the user's program or its ranks."""
        return ["a watched run is a user's own program; start it with `observatory watch --name NAME -- COMMAND`"]
