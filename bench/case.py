"""A case: what to run and how often, with its key, checks, scaling baseline, instrumentation and purpose."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import msgspec

from bench.errors import Misuse, plural
from collectors.settings_file import near_name
from workloads.core.learning_rate import DECAY_STEPS, decay_steps
from workloads.core.precision_options import GRAD_DTYPE, WEIGHTS
from workloads.cost_models.shape import PRESETS, Shape, shape_in_key, unlike
from workloads.options import microbatch_count, microbatch_option
from workloads.registry import SPECS, is_known, spec_of
from workloads.spec import WATCHED, Backend, Device, Option, OptionValue, Precision, SaveMode, StrategySpec

VERSIONS = ("backend", "torch", "python")
"""Options of a watched run's case that name its backend and versions; the others are its name, groups and tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload in one setting, and how often it is measured.

    version: the version of the strategy's definition, from its spec.
    threads: CPU threads of a rank; a rank on the CPU counts as one device with this many threads.
    model: the shape of the model, and the batch; None for a probe and a watched run.
    trials: how often fresh ranks measure the case.
    steps, warm_up, trace_steps: optimizer steps of a trial: measured, before these, and after them under the profiler.
    For a probe: calls of each measurement, none under the profiler.
    options: all options of the strategy, including those left at their default; see `StrategySpec.settled`.
    nodes: the ranks are spread over this many nodes, evenly and in order.
    bind: bind each rank to the cores of its GPU's NUMA node; never on a CPU. Older versions bound no rank.
    save_every: measured steps between two checkpoints; None: no checkpoint is saved. save_mode: see `SaveMode`.
    """

    strategy: str
    version: int
    ranks: int
    model: Shape | None
    device: Device
    backend: Backend
    precision: Precision
    threads: int
    trials: int
    steps: int
    warm_up: int
    trace_steps: int
    seed: int
    options: Mapping[str, OptionValue]
    nodes: int = 1
    bind: bool = False
    save_every: int | None = None
    save_mode: SaveMode = "sync"

    @property
    def title(self) -> str:
        """The case in a few words: "ddp on 4", "ddp on 16 over 2 nodes"; for a watched run, with its own name."""
        over = f" over {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.watched_name or self.strategy} on {self.ranks}{over}"

    @property
    def setting(self) -> str:
        """Where and how its ranks compute, in a few words: "cpu, gloo, fp32, 1 thread per rank, seed 0"."""
        if self.watched_name is not None:
            return ", ".join([self.device, *(f"{name} {self.options.get(name, '')}" for name in VERSIONS)])
        words = [self.device, self.backend, self.precision, f"{plural(self.threads, 'thread')} per rank"]
        words += [] if self.device == "cpu" else ["bound to cores" if self.bind else "not bound to cores"]
        return ", ".join([*words, f"seed {self.seed}"])

    @property
    def watched_name(self) -> str | None:
        """The name that a user gave to a watched run; None for all other runs."""
        return str(self.options.get("name", "")) if self.strategy == WATCHED else None

    @property
    def shape(self) -> Shape:
        """The model's dimensions. A probe and a watched run have no model and fail here."""
        assert self.model is not None, f"{self.strategy} has no model"
        return self.model

    @property
    def data_ranks(self) -> int:
        """The number of shares that a batch is divided into."""
        return self.spec().data_ranks(self)

    def key(self) -> str:
        """Return the case's key, equal for cases that measure the same thing, regardless of how often and how long."""
        fields = asdict(self)
        if self.model is not None:
            fields["model"] = shape_in_key(self.model)
        for name in ("trials", "steps", "warm_up", "trace_steps", "seed"):
            del fields[name]
        if self.nodes == 1:  # Keeps the keys of runs from before nodes existed.
            del fields["nodes"]
        if not self.bind:  # Keeps the keys of runs from before ranks were bound.
            del fields["bind"]
        if self.save_every is None:  # Keeps the keys of runs without checkpoints.
            del fields["save_mode"]
        del fields["save_every"]
        # The history may have strategies that no longer exist.
        for spec in SPECS:
            if spec.name == self.strategy:
                fields["options"] = spec.options_in_key(self.options)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def positions(self) -> int:
        """Return how many readings each rank logs: one per step, or per measurement of a probe."""
        spec = self.spec()
        return spec.measurements(self) if spec.kind == "probe" else self.warm_up + self.steps

    def spec(self) -> StrategySpec:
        return spec_of(self.strategy)


def find_spec(name: str) -> StrategySpec:
    """Return the spec of this name.

    Raises:
        Misuse: no strategy has this name; the message offers the nearest one.
    """
    for spec in SPECS:
        if spec.name == name:
            return spec
    if is_known(name):
        words = "stands for the user's own programs, and cannot be run by name"
        raise Misuse(f'"{name}" {words}; `observatory watch --name NAME -- COMMAND` watches one')
    raise Misuse(f'strategy "{name}" is unknown{_nearest(name, (spec.name for spec in SPECS))}')


def known_options(strategy: str) -> tuple[Option, ...]:
    """Return the options of the strategy; none for a strategy that no longer exists but is in the history."""
    return next((spec.options for spec in SPECS if spec.name == strategy), ())


def options_of(case: Case) -> dict[str, OptionValue]:
    """Return the case's options by their current names; an option newer than the case has the value usual before it.

    Options that no longer exist come last.
    """
    options = known_options(case.strategy)
    former_names = {option.formerly for option in options}
    known = {option.name: option.of(case) for option in options if option.added_later or option.name in case.options}
    return known | {
        name: value for name, value in case.options.items() if name not in known and name not in former_names
    }


def settings_of(case: Case) -> tuple[str, ...]:
    """Return the case's settings that differ from the default, one word each: "overlap=false", "width=256", "seed=1".

    The number of ranks, the device, the precision and the batch are not included.
    """
    if case.watched_name is not None:  # Of the user's own program, only its tags are settings.
        nodes = [f"nodes={case.nodes}"] if case.nodes > 1 else []
        return (*nodes, *str(case.options.get("tags", "")).split())
    words: list[tuple[str, OptionValue, OptionValue | None]] = [
        (name, value, None) for name, value in options_set(case).items()
    ]
    if case.model is not None:
        preset = min(PRESETS, key=lambda name: len(_unlike(case.shape, PRESETS[name])))
        words.append(("shape", preset, "tiny" if case.device == "cpu" else None))  # GPU memory decides.
        words += [(name, case.model.word(name), "") for name in _unlike(case.model, PRESETS[preset])]
    usual = {"nodes": 1, "threads": 1, **USUAL, "seed": SEED}
    if case.model is None:
        del usual["trace_steps"]  # Probes trace nothing.
    words += [(name, getattr(case, name), value) for name, value in usual.items()]
    words.append(("bind", case.bind, case.device == "cuda"))
    if case.save_every is not None:
        words += [("save_every", case.save_every, ""), ("save_mode", case.save_mode, "sync")]
    return tuple(f"{name}={_short(value)}" for name, value, default in words if value != default)


def options_set(case: Case) -> dict[str, OptionValue]:
    """Return the options that the user set: those whose values differ from what the case would have without them."""
    values = options_of(case)
    spec = next((spec for spec in SPECS if spec.name == case.strategy), None)
    usual: dict[str, OptionValue] = {}
    if spec is not None and case.version < spec.version_on(case.device):  # Some defaults have changed since.
        usual = {option.name: option.before for option in spec.options if option.before is not None}
    return {
        option.name: value
        for option in known_options(case.strategy)
        if (value := values.get(option.name, option.default)) != option.default
        and value != usual.get(option.name)
        and value != _left_out(case, option)
    }


def options_shown(case: Case) -> dict[str, OptionValue]:
    """Return the options that the user set, and those of older cases that no longer exist."""
    known = {option.name for option in known_options(case.strategy)}
    return options_set(case) | {name: value for name, value in options_of(case).items() if name not in known}


def _left_out(case: Case, option: Option) -> OptionValue:
    """Return the value that the case would have if the option were not set; some defaults depend on the case."""
    defaults = {each.name: each.default for each in known_options(case.strategy)}
    without = replace(case, options={**defaults, **case.options, option.name: option.default})
    return settle(without).options[option.name]


def _short(value: OptionValue) -> str:
    """Return the value as people type it: 1 for 1.0."""
    return written(int(value) if isinstance(value, float) and value.is_integer() else value)


def _unlike(shape: Shape, preset: Shape) -> list[str]:
    """Return the fields in which a shape differs from the preset, ignoring the batch."""
    return [name for name in unlike(shape, preset) if name != "batch"]


def _nearest(name: str, names: Iterable[str], spec: str = "") -> str:
    near = near_name(name, names)
    offer = "" if near is None else f'; did you mean "{near}"?'
    return f"{offer} (`{' '.join(['observatory list', *spec.split()])}` shows all)"


def written(value: OptionValue) -> str:
    """Return the value as it is written after `--option NAME=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_options(spec: StrategySpec, texts: Iterable[str]) -> dict[str, OptionValue]:
    """Return all options of the strategy, with the values that `key=value` texts set.

    Raises:
        Misuse: a text is not key=value, a key is unknown or repeated, or a value is not allowed.
    """
    options = {option.name: option for option in spec.options}
    new_names = {option.formerly: option.name for option in spec.options if option.formerly is not None}
    values: dict[str, OptionValue] = {}
    old_names: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Misuse(f'option "{text}" has no value; write {text}=VALUE')
        if name in new_names:
            old, name = name, new_names[name]
            old_names[name] = f" ({old} is its old name)"
        if name not in options:
            takers = [strategy.name for strategy in SPECS if name in {option.name for option in strategy.options}]
            whose = f", which {' and '.join(takers)} {'takes' if len(takers) == 1 else 'take'}" if takers else ""
            offer = f" (`observatory list {spec.name}` shows all)" if takers else _nearest(name, options, spec.name)
            raise Misuse(f'{spec.name} has no option "{name}"{whose}{offer}')
        if name in values:
            raise Misuse(f"option {name} is set twice{old_names.get(name, '')}; set it once")
        try:
            values[name] = options[name].parse(value)
        except ValueError as error:
            raise Misuse(f"{spec.name}: {error}") from None
    return {name: values.get(name, option.default) for name, option in options.items()}


def settle(case: Case) -> Case:
    """Return the case with the defaults filled in that depend on it: on its shape, its backend or its steps."""
    options = dict(case.spec().settled(case))
    if DECAY_STEPS.name in options:
        options[DECAY_STEPS.name] = decay_steps(case, case.warm_up + case.steps + case.trace_steps)
    return replace(case, options=options)


USUAL = {"trials": 3, "steps": 20, "warm_up": 5, "trace_steps": 3}
"""How often and how long a case is measured by default."""
SEED = 0
LEAST = {"ranks": 1, "nodes": 1, "threads": 1, "trials": 1, "steps": 1, "warm_up": 0, "trace_steps": 0, "seed": 0}
MOST = {
    "ranks": 4096,
    "nodes": 4096,
    "trials": 10**6,
    "steps": 10**9,
    "warm_up": 10**9,
    "trace_steps": 10**6,
    "seed": 2**63 - 1,
}
"""Upper limits that no node reaches; `bench.machine.preflight` checks the smaller limits of memory and cores."""


def check(case: Case, *, is_here: bool = True) -> Case:
    """Return the case if it can be run.

    is_here: also check what is installed here; False if the case will run on another machine.

    Raises:
        Misuse: a number is too small or too large, the strategy needs something else, or its spec refuses the case.
    """
    spec = case.spec()
    for name, least in LEAST.items():
        if getattr(case, name) < least:
            raise Misuse(f"{name.replace('_', '-')} is {getattr(case, name)}; it must be {least} or more")
    for name, most in MOST.items():
        if getattr(case, name) > most:
            raise Misuse(f"{name.replace('_', '-')} is {getattr(case, name)}; it must be {most} or less")
    if case.nodes > case.ranks:
        raise Misuse(f"nodes is {case.nodes}, but there are only {plural(case.ranks, 'rank')}; use fewer nodes")
    needs = spec.needs
    if case.ranks < needs.minimum_ranks or (needs.maximum_ranks is not None and case.ranks > needs.maximum_ranks):
        raise Misuse(f"{spec.name}: ranks is {case.ranks}; it needs {needs.text()}")
    if case.device not in needs.devices:
        raise Misuse(f"{spec.name}: device is {case.device}; it needs {needs.text()}")
    if case.device == "cpu" and case.bind:
        raise Misuse("bind is true on cpu, but only ranks on GPUs can be bound to cores; leave it out")
    if case.device == "cpu" and case.backend == "nccl":
        raise Misuse("backend nccl needs --device cuda; use --backend gloo on the CPU")
    _check_saves(case)
    reasons = spec.all_refusals(case, is_here=is_here)
    if reasons:
        raise Misuse(f"{spec.name}: {'; '.join(reasons)}")
    return case


def _check_saves(case: Case) -> None:
    if case.save_every is None:
        if case.save_mode != "sync":
            raise Misuse(f"save-mode is {case.save_mode}, but no checkpoint is saved; add --save-every 5")
        return
    if case.save_every < 1:
        raise Misuse(f"save-every is {case.save_every}; it must be 1 or more measured steps")
    if case.model is None:
        raise Misuse(f"{case.strategy} is a probe and trains no model that could be saved; leave --save-every out")
    if case.save_every > case.steps:
        raise Misuse(
            f"save-every is {case.save_every}, but {plural(case.steps, 'step')} of a trial are measured, so none would"
            f" be saved; use --save-every {case.steps} or less"
        )


def one_rank_baseline(case: Case, scaling: str) -> Case | None:
    """Return the case of `single` that serves as scaling baseline; None if the work does not divide evenly.

    scaling: "weak" gives `single` the work of one training rank, "strong" the work of the whole case.
    """
    batch = case.shape.batch
    if scaling == "weak":
        trained = case.spec().training_ranks(case)
        if batch % trained:
            return None
        batch //= trained
    single = spec_of("single")
    # An option newer than the case has its earlier value in the baseline too, so that both have the same weights.
    options = {
        option.name: option.of(case) if option.added_later or option.name in case.options else option.default
        for option in single.options
    }
    if options[WEIGHTS.name] != "bf16":  # One rank reduces nothing, and the gradients of its fp32 weights are fp32.
        options[GRAD_DTYPE.name] = GRAD_DTYPE.default
    baseline = replace(
        case,
        strategy=single.name,
        version=single.version_on(case.device),
        ranks=1,
        nodes=1,
        model=replace(case.shape, batch=batch),
        options=options,
        backend="nccl" if case.device == "cuda" else "gloo",
        save_every=None,
        save_mode="sync",
    )
    return None if single.all_refusals(baseline) else baseline


def baseline_case(case: Case, scaling: str) -> Case:
    """Return the case of `single` to measure alongside a case.

    Raises:
        Misuse: the case has one rank, or its batch does not divide evenly.
    """
    if case.ranks == 1:
        raise Misuse("--with-baseline compares several ranks with one, but ranks is 1; use --ranks 2 or more")
    baseline = one_rank_baseline(case, scaling)
    if baseline is None:
        raise Misuse(
            f"batch {case.shape.batch} over {case.ranks} ranks with {microbatch_option(case).name}"
            f" {microbatch_count(case)} does not divide into equal {scaling} shares; choose a --batch that is a"
            " multiple of both"
        )
    return baseline


# Instrumentation options: extra profiler windows and memory snapshots, taken outside the measured steps.


class InstrumentationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Instrumentation options of a run.

    trace_every: measured steps between two profiler windows; None: one window, after all measured steps.
    memory_snapshot: measure the memory of a step by category, and on CUDA the history of its blocks.
    keep_checkpoint: keep the last checkpoint of each trial, where the case saves any.
    """

    trace_every: int | None = None
    memory_snapshot: bool = False
    keep_checkpoint: bool = False


NO_INSTRUMENTATION = InstrumentationOptions()


def check_instrumentation(options: InstrumentationOptions, case: Case) -> InstrumentationOptions:
    """Return the instrumentation options if they fit the case.

    Raises:
        Misuse: there would be no steps between two windows, or none in a window, or no checkpoint to keep.
    """
    if options.keep_checkpoint and case.save_every is None:
        raise Misuse("--keep-checkpoint keeps the last checkpoint, but none is saved; add --save-every 5")
    if options.trace_every is None:
        return options
    if options.trace_every < 1:
        raise Misuse(f"trace-every is {options.trace_every}; it must be 1 or more measured steps")
    if not case.trace_steps:
        raise Misuse("--trace-every repeats the profiler window, but trace-steps is 0; use --trace-steps 1 or more")
    return options


# Purpose of a run. The history stores ad-hoc runs like all others, but never as the newest result of a series.

Origin = Literal["run", "nightly"]
"""Who requested the measurement: a person (`run`) or a schedule (`nightly`)."""

LONGEST_NOTE = 200


class SuiteMember(msgspec.Struct, frozen=True, kw_only=True):
    """The suite run that a run belongs to. suite: the suite's name. id: the suite run's ID. case: the case's name in
    the suite.

    is_rerun: the run repeated the case because the gate suspected a change. margin: the largest change that does not
    matter, as a ratio, if the suite file sets one.
    """

    suite: str
    id: str
    case: str
    is_rerun: bool = False
    margin: float | None = None


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """The purpose of a run. note: the user's words; a run with a note is ad hoc. member: None outside of suites."""

    origin: Origin = "run"
    note: str | None = None
    member: SuiteMember | None = None


ONE_RUN = Purpose()


def check_purpose(purpose: Purpose) -> Purpose:
    """Return the purpose if it is valid.

    Raises:
        Misuse: the note is empty, too long or not printable, or a nightly run has a note.
    """
    note = purpose.note
    if note is None:
        return purpose
    if not note.strip():
        raise Misuse("note is empty; describe the run's purpose, or leave --note out")
    if len(note) > LONGEST_NOTE:
        raise Misuse(f"note has {len(note)} characters; at most {LONGEST_NOTE} are allowed")
    if not note.isprintable():
        raise Misuse("note has a character that cannot be printed, for example a newline or an escape; use plain text")
    if purpose.origin != "run":
        raise Misuse(f"--note makes a run ad hoc, but --{purpose.origin} runs are not; leave one of the two out")
    return purpose


def why_ad_hoc(case: Case, purpose: Purpose) -> tuple[str, ...]:
    """Return why the run is ad hoc; empty if it is a result of its series.

    Options in the case's key do not count, because they make another series. Settings outside the key that affect
    figures do: measuring less than by default, or another seed, which means other weights and data. Measuring more does
    not count, because the result is as good.
    """
    if case.watched_name is not None:
        return ()  # It is the job itself, of whatever length.
    if purpose.member is not None and purpose.member.is_rerun:
        return ("the gate ordered it, to separate a change from chance",)
    if purpose.origin != "run":
        return ()
    reasons = [] if purpose.note is None else ["it has a note"]
    for name, usual in USUAL.items():
        if name == "trace_steps" and case.model is None:
            continue  # Probes trace nothing.
        if (value := getattr(case, name)) < usual:
            reasons.append(f"{name.replace('_', '-')} {value} instead of {usual}")
    if case.seed != SEED:
        reasons.append(f"seed {case.seed} instead of {SEED}")
    return tuple(reasons)
