"""`StrategySpec`: everything that can be said of a strategy or probe without running it and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import Pipeline
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import NotCovered, States, Transfer, made_whole_bytes

# A rank's share of each batch, which follows from the device mesh.

DATA_AXES = ("data", "replicate", "shard")
"""Mesh axes whose ranks train on different sequences; ranks that differ on any other axis share theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlace:
    """A rank's share of each batch: number `rank`, counted from 0, of `ranks` equal shares."""

    rank: int
    ranks: int


def place_in_mesh(axes: Mapping[str, int], rank: int) -> DataPlace:
    """Return the share of a rank in a mesh over all ranks, whose last axis runs fastest.

    axes: name and size of each axis, outermost first.
    Example: rank 5 of {"data": 4, "tensor": 2} is at data 2, tensor 1, and trains on share 2 of 4.
    """
    place, stride = DataPlace(rank=0, ranks=1), 1
    for name, size in reversed(list(axes.items())):
        if name in DATA_AXES:
            position = rank // stride % size
            place = DataPlace(rank=place.rank + position * place.ranks, ranks=place.ranks * size)
        stride *= size
    return place


Device = Literal["cpu", "cuda"]
Backend = Literal["gloo", "nccl"]
Precision = Literal["fp32", "bf16", "fp16"]
OptionValue = bool | int | float | str
Kind = Literal["training", "probe"]
"""training: optimizer steps of a model. probe: a measurement of the machine, which has no model."""


class Setup(Protocol):
    """What a spec and a workload read of a case.

    shape: of the model; a probe has none and must not read it.
    """

    @property
    def strategy(self) -> str: ...
    @property
    def ranks(self) -> int: ...
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


LARGEST = 2**63 - 1
"""The largest whole number that a run's files and tensors can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a strategy; its type is that of its default.

    choices: the only words allowed, for an option of text.
    minimum: the least number allowed.
    added_later: the strategy has stored results from before the option. Setups without it have its default, and at its
        default it is left out of a case's key, so that the series of those results go on.
    """

    name: str
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    added_later: bool = False

    def of(self, setup: Setup) -> OptionValue:
        """Return the setup's value, or the default where the setup is older than the option."""
        return setup.options.get(self.name, self.default) if self.added_later else setup.options[self.name]

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
        try:
            value = self._read(text)
        except (ValueError, KeyError):
            raise ValueError(f'option {self.name} is "{text}"; it may be {self.allowed}') from None
        return value

    def _read(self, text: str) -> OptionValue:
        if isinstance(self.default, bool):
            return {"true": True, "false": False}[text.lower()]
        value = type(self.default)(text)
        if self.choices and value not in self.choices:
            raise ValueError
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError
        if isinstance(value, (int, float)) and not _is_number_allowed(value, self.minimum):
            raise ValueError
        return value


def _is_number_allowed(value: float, minimum: float | None) -> bool:
    return abs(value) < float("inf") and (minimum is None or value >= minimum)


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


def _always_comparable(setup: Setup) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How the strategy's losses and gradients compare with those of `single`; the parity test reads it.

    kind: exact: equal within `limits`, for each of `variants` (options that must not change the result);
        lossless_limit: exact with `variants`, which make the strategy lossless; none: not comparable, for `reason`.
    incomparable: returns why a setup of a comparable strategy is not comparable, with what would be; else None.
    """

    kind: Literal["exact", "lossless_limit", "none"]
    limits: Mapping[Precision, float] = field(default_factory=lambda: LIMITS)
    variants: tuple[Mapping[str, OptionValue], ...] = ({},)
    reason: str = ""
    incomparable: Callable[[Setup], str | None] = _always_comparable


def _as_they_are(setup: Setup) -> Mapping[str, OptionValue]:
    return setup.options


def _no_transfers(setup: Setup) -> tuple[Transfer, ...]:
    return ()


def _no_states(setup: Setup, rank: int) -> States:
    return States(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0)


def _made_whole(setup: Setup, rank: int) -> int:
    return made_whole_bytes(setup.shape)


def _no_paper(setup: Setup) -> States:
    return States(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0)


def _no_peak(setup: Setup) -> NotCovered:
    return NotCovered(reason=f"no law says which tensors of {setup.strategy} live at the peak of a step")


def _all_covered(setup: Setup) -> None:
    return None


def _no_pairs(setup: Setup) -> tuple[int, ...]:
    return ()


def _no_pipeline(setup: Setup) -> None:
    return None


def _no_notes(setup: Setup) -> list[str]:
    return []


def _no_axes(setup: Setup) -> tuple[str, ...]:
    return ()


def _never(setup: Setup) -> bool:
    return False


def _nothing(setup: Setup) -> int:
    return 0


def _holds_nothing(setup: Setup, rank: int) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """The spec of a strategy or probe: what it is, takes, needs and refuses, and the terms of its cost model.

    entry: "module:name" of what a rank runs: a `Build` function for training, a `Probe` function for a probe. A string,
        because that module loads torch.
    version: of the definition; a changed workload begins a new series, which is not compared with older ones.
    cuda_version: of the definition on CUDA, where only that changed; None where it is `version`.
    mesh: axes of the device mesh and their sizes, outermost first; their product is the number of ranks.
    refusals: why this setup would be wrong or hang, with what would work; empty where it runs. Callers use
        `all_refusals`, which adds what follows from the spec's other fields.
    sends_messages: whether ranks exchange tensors by send and receive.
    high_priority_axes: axes of the mesh whose groups have a stream of high priority on NCCL.
    data_place: a rank's share of the batch, None for a rank that trains on none; by default it follows from the mesh.
    transfers, states: of training, transfers that all ranks share, and states of one rank; see
        `workloads.cost_models.terms`.
    building_bytes: of training, the least that a rank holds on its device at the worst moment before the first step:
        every strategy makes the whole model on each rank, and divides it then.
    paper_states: of training, a rank's states as the paper counts them, which gives all ranks as much.
    settled: the options of a case, where defaults that depend on the setup are filled in; a case holds these, so that
        its key says what was measured.
    notes: what a reader of the run's figures must know about this setup.
    peak: of training, the live tensors of the rank that holds most, at the peak of a step.
    states_not_covered: why `states` is only an estimate for this setup; None where the cost model covers it.
    paper_activations: of training, bytes of activations of the rank that holds most, as the papers count them; by
        default those of a whole model's microbatch.
    attention_pairs: query-key pairs that each rank attends in a step's forward, of all heads and layers; empty where
        the workload does not count them.
    pipeline: how stages follow each other, None where the strategy has none.
    has_second_communicator: of training, whether a thread uses a communicator of its own while backward runs; backward
        must then use no other on NCCL.
    measurements: of a probe, how many each rank records.
    working_bytes: of a probe, what a rank holds at once; a training rank needs at least its states.
    """

    name: str
    entry: str
    kind: Kind
    summary: str
    version: int
    options: tuple[Option, ...]
    needs: Needs
    parity: Parity
    mesh: Callable[[Setup], dict[str, int]]
    refusals: Callable[[Setup], list[str]]
    sends_messages: Callable[[Setup], bool] = _never
    high_priority_axes: Callable[[Setup], tuple[str, ...]] = _no_axes
    cuda_version: int | None = None
    settled: Callable[[Setup], Mapping[str, OptionValue]] = _as_they_are
    data_place: Callable[[Setup, int], DataPlace | None] | None = None
    transfers: Callable[[Setup], tuple[Transfer, ...]] = _no_transfers
    states: Callable[[Setup, int], States] = _no_states
    building_bytes: Callable[[Setup, int], int] = _made_whole
    paper_states: Callable[[Setup], States] = _no_paper
    peak: Callable[[Setup], Prediction | NotCovered] = _no_peak
    states_not_covered: Callable[[Setup], NotCovered | None] = _all_covered
    paper_activations: Callable[[Setup], int | NotCovered] | None = None
    attention_pairs: Callable[[Setup], tuple[int, ...]] = _no_pairs
    pipeline: Callable[[Setup], Pipeline | None] = _no_pipeline
    has_second_communicator: Callable[[Setup], bool] = _never
    notes: Callable[[Setup], list[str]] = _no_notes
    measurements: Callable[[Setup], int] = _nothing
    working_bytes: Callable[[Setup, int], int] = _holds_nothing

    def all_refusals(self, setup: Setup) -> list[str]:
        """Return why this setup would be wrong or hang, each with what would work; empty where it runs."""
        if reasons := self.refusals(setup):
            return reasons
        if setup.device == "cuda" and setup.backend == "gloo" and self.sends_messages(setup):
            # ProcessGroupGloo gives a GPU's pointer to the host's sockets; its collectives copy to the host and back.
            return ["backend gloo sends no tensor of a GPU from rank to rank; take --backend nccl, or --device cpu"]
        return []

    def options_in_key(self, values: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """Return the values that distinguish series of results: all but defaults of options that were added later."""
        later = {option.name: option.default for option in self.options if option.added_later}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    def version_on(self, device: Device) -> int:
        """Return the version of the definition on a device."""
        return self.version if device == "cpu" or self.cuda_version is None else self.cuda_version

    def place_of(self, setup: Setup, rank: int) -> DataPlace | None:
        """Return the share of each batch that a rank trains on, None where it trains on none."""
        if self.data_place is not None:
            return self.data_place(setup, rank)
        return place_in_mesh(self.mesh(setup), rank)

    def data_ranks(self, setup: Setup) -> int:
        """Return the number of shares that a batch is divided into."""
        places = (self.place_of(setup, rank) for rank in range(setup.ranks))
        return next(place.ranks for place in places if place is not None)

    def training_ranks(self, setup: Setup) -> int:
        """Return how many ranks share the work of a batch, whether by sequences, tensors, layers or positions."""
        return sum(self.place_of(setup, rank) is not None for rank in range(setup.ranks))

    def most_states(self, setup: Setup) -> States:
        """Return each part of the states at its maximum over the ranks."""
        ranks = [self.states(setup, rank) for rank in range(setup.ranks)]
        return States(
            parameters_bytes=max(states.parameters_bytes for states in ranks),
            gradients_bytes=max(states.gradients_bytes for states in ranks),
            optimizer_bytes=max(states.optimizer_bytes for states in ranks),
        )
