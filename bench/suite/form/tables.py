"""The tables of a suite file: purpose and allowed values of each key, for its checks and its JSON Schema."""

from __future__ import annotations

from typing import Annotated as A  # noqa: N817
from typing import Literal, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from bench.case import MOST, SEED, USUAL
from bench.gate.detector.settings import SETTINGS
from bench.rank.messages import FailureCause, TrialOutcome
from bench.results.efficiency import Scaling
from collectors.metrics.registry import METRICS
from collectors.settings_file import JsonSchema
from workloads.cost_models.shape import PRESETS
from workloads.registry import SPECS
from workloads.spec import LARGEST, Backend, ChosenPrecision, Device, Option, SaveMode

SCHEMA_VERSION = 1
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$(?!\n)"
"""Names of suites, cases, levers, blocks and tags: they become parts of file names and command lines."""
NAMES = "a name of letters, digits, _ and -, at most 60 of them"
"""Description of the names that `NAME` allows."""


def key(text: str) -> Meta:
    """Return a schema annotation with the purpose of a key."""
    return Meta(description=text)


T = TypeVar("T")
Several: TypeAlias = A[list[T], Meta(min_length=1)]
Swept: TypeAlias = T | Several[T]
"""A value, or a list of values that are all measured."""
Name = A[str, Meta(pattern=NAME, title=NAMES)]
Text = A[str, Meta(pattern=r"\S", title="a text that is not empty")]
Word = A[str, Meta(min_length=1)]
"""A text that may be swept: msgspec 0.22 corrupts memory if a text with a pattern may also be a list."""
Strategy: TypeAlias = Literal[tuple(spec.name for spec in SPECS)]  # type: ignore[valid-type]
RunMetric: TypeAlias = Literal[tuple(metric.name for metric in METRICS if metric.scope == "run")]  # type: ignore[valid-type]
CauseKind: TypeAlias = Literal[get_args(get_type_hints(FailureCause)["kind"])]  # type: ignore[valid-type]
Dimension = A[int, Meta(ge=1, le=2**31 - 1)]
Ranks = A[int, Meta(ge=1, le=MOST["ranks"])]
Steps = A[int, Meta(ge=0, le=MOST["trace_steps"])]
Value: TypeAlias = bool | int | float | str
Names = A[list[Name], Meta(min_length=1, title="a list of names", extra_json_schema={"uniqueItems": True})]
Keys = A[list[Text], Meta(min_length=1)]


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def option_schemas() -> JsonSchema:
    """Return the JSON Schema of a table of options, in which each allows the values of all its strategies."""
    takers: dict[str, list[tuple[str, Option]]] = {}
    for spec in SPECS:
        for option in spec.options:
            takers.setdefault(option.name, []).append((spec.name, option))
    schemas: JsonSchema = {}
    for name, pairs in takers.items():
        options = [option for _, option in pairs]
        (kind,) = {_TYPES[type(option.default)] for option in options}
        choices = list(dict.fromkeys(choice for option in options for choice in option.choices))
        least = [option.minimum for option in options if option.minimum is not None]
        limits = {"enum": choices} if choices else {"minimum": min(least)} if len(least) == len(options) else {}
        value = {"type": kind, **limits}
        whose = "many strategies" if len(pairs) > 6 else ", ".join(strategy for strategy, _ in pairs)
        schemas[name] = {
            "description": f"Option of {whose}: {options[0].help}.",
            "anyOf": [value, {"type": "array", "items": value, "minItems": 1}],
        }
    return {"properties": schemas, "additionalProperties": False}


SCALING = (
    "Makes the cases a scaling curve over their ranks. weak: the baseline's batch grows with the training ranks;"
    " strong: the batch does not change."
)
BASELINE = (
    "Case that scaling efficiency is relative to: a table, or a resolved name. By default, on a curve, the case of the"
    " fewest ranks."
)
SHAPE = (
    f"The model: {', '.join(PRESETS)}, or the path of a Llama-like model's config.json, relative to the suite's folder."
)
BLOCK = (
    "Cases of one block are measured in turn, trial by trial; by default a block has a table's cases and those of its"
    " baseline's table."
)
OPTIONS = "Options of the strategy; `observatory list STRATEGY` describes them."
INJECT = (
    "Fire drill: a fault as KIND@RANK:STEP, for example kill@1:3; KIND is raise, kill, stop, hang, wait, memory, exit"
    " or leave."
)
PERIOD = "Hours between two runs of the suite; an alert fires when a run is late."
# The tables.


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class SuiteNeeds(_Table, frozen=True):
    """What a case needs from the machines, in addition to what follows from the case; 0: nothing."""

    gpus: A[int, Meta(ge=0, le=10**6), key("GPUs of each node.")] = 0
    memory_bytes: A[float, Meta(ge=0, le=LARGEST), key("Memory of each GPU, or of the host for a case on a CPU.")] = 0.0
    nodes: A[int, Meta(ge=1, le=MOST["nodes"]), key("Nodes; by default as many as have a GPU for each rank.")] = 1


class Gate(_Table, frozen=True):
    """How `observatory check` judges the case. margin: the largest change of a figure that does not matter."""

    margin: A[float, Meta(ge=SETTINGS.smallest_change, le=1), key("A change up to this is accepted: 0.05 is 5 %.")]


class Expected(_Table, frozen=True):
    """How a fire drill must end. cause: a `Cause.kind`. cause, rank: None if any will do."""

    outcome: A[TrialOutcome, key("How the case must end.")]
    cause: A[CauseKind | None, key("Kind of root cause that must be reported.")] = None
    rank: A[A[int, Meta(ge=0, lt=MOST["ranks"])] | None, key("Rank that must be the root cause.")] = None


class Training(_Table, frozen=True):
    """Keys of a model or of its training, which a probe does not accept."""

    shape: A[Swept[Word] | None, Meta(description=SHAPE, extra_json_schema={"examples": list(PRESETS)})] = None
    # Cost models list each layer's weights.
    layers: A[Swept[A[int, Meta(ge=1, le=10_000)]] | None, key("Replaces the shape's layers.")] = None
    width: A[Swept[Dimension] | None, key("Replaces the shape's width.")] = None
    heads: A[Swept[Dimension] | None, key("Replaces the shape's heads.")] = None
    kv_heads: A[Swept[Dimension] | None, key("Replaces the shape's kv_heads.")] = None
    mlp_width: A[Swept[Dimension] | None, key("Replaces the shape's mlp_width.")] = None
    vocabulary: A[Swept[Dimension] | None, key("Replaces the shape's vocabulary.")] = None
    sequence: A[Swept[Dimension] | None, key("Replaces the shape's sequence.")] = None
    batch: A[Swept[Dimension] | None, key("Sequences of one step over all ranks.")] = None
    trace_steps: A[Swept[Steps], key("Steps under the profiler, after the measured ones.")] = USUAL["trace_steps"]
    keep_traces: A[bool, key("Also keep each rank's full trace, as torch.profiler wrote it.")] = False
    trace_every: A[A[int, Meta(ge=1)] | None, key("Interval between traced steps, in measured steps.")] = None
    memory_snapshot: A[bool, key("Record the memory of one step, by category and block.")] = False
    save_every: A[A[int, Meta(ge=1)] | None, key("Interval between checkpoints, in measured steps.")] = None
    save_mode: A[Swept[SaveMode], key("Whether training waits until a checkpoint is on disk.")] = "sync"
    keep_checkpoint: A[bool, key("Keep the last checkpoint of each trial.")] = False
    scaling: A[Scaling | None, key(SCALING)] = None
    baseline: A[Text | None, key(BASELINE)] = None


class Defaults(Training, frozen=True):
    """[defaults]."""

    ranks: A[Swept[Ranks] | None, key("Ranks; by default one for each GPU, or 2 on a CPU, as the strategy allows.")] = (
        None
    )
    device: A[Swept[Device] | None, key("By default cuda if there is a GPU, else cpu.")] = None
    backend: A[Swept[Backend] | None, key("By default nccl on cuda, gloo on cpu.")] = None
    precision: A[Swept[ChosenPrecision] | None, key("Arithmetic precision; by default bf16 for models on GPUs.")] = None
    threads: A[Swept[A[int, Meta(ge=1)]], key("CPU threads of a rank.")] = 1
    bind: A[Swept[bool], key("Bind each rank to the cores of its GPU; without effect on a CPU.")] = True
    trials: A[Swept[A[int, Meta(ge=1, le=MOST["trials"])]], key("Number of trials, each with fresh ranks.")] = USUAL[
        "trials"
    ]
    steps: A[Swept[A[int, Meta(ge=1, le=MOST["steps"])]], key("Measured steps of a trial.")] = USUAL["steps"]
    warm_up: A[Swept[A[int, Meta(ge=0, le=MOST["warm_up"])]], key("Unmeasured steps before the measured ones.")] = (
        USUAL["warm_up"]
    )
    seed: A[Swept[A[int, Meta(ge=0)]], key("Seed for weights and data.")] = SEED
    options: A[dict[str, Swept[Value]], key(OPTIONS)] = {}
    zip: A[
        A[list[Keys], Meta(min_length=1, title='a list of lists of keys, for example [["ranks", "batch"]]')] | None,
        key("Lists that move together, by the names of their keys, for example [['ranks', 'batch']]."),
    ] = None
    exclude: A[
        A[list[dict[str, Value]], Meta(min_length=1, title="a list of tables, for example [{ ranks = 8 }]")] | None,
        key("Combinations of the sweeps' values to leave out."),
    ] = None
    block: A[Name | None, key(BLOCK)] = None
    limit_s: A[float, Meta(ge=1, le=10**7), key("Time limit of a trial, in seconds.")] = 600.0
    retries: A[int, Meta(ge=0, le=10), key("Further attempts after a failure of the infrastructure.")] = 1
    tags: A[Names | None, key("Names by which --only chooses cases.")] = None
    importance: A[int, Meta(ge=-(10**6), le=10**6), key("Within a budget, higher importance comes first.")] = 0
    needs: A[SuiteNeeds, key("What the case needs; it is skipped on machines that lack it.")] = SuiteNeeds()
    gate: A[Gate | None, key("How `observatory check` judges the case, if it differs from other cases.")] = None
    inject: A[Swept[Word] | None, key(INJECT)] = None
    expect: A[Expected | None, key("How a fire drill must end; this end does not count as a failure.")] = None


class CaseTable(Defaults, frozen=True):
    """[case.NAME]."""

    strategy: A[Swept[Strategy] | None, key("Strategy or probe; by default the name of the table.")] = None


class Claim(_Table, frozen=True):
    """What a textbook claims for a lever: the metric with the lever on is `low` to `high` times that with it off.

    device: if set, the device that the claim is about; cases on another device do not test it.
    """

    metric: A[RunMetric, key("Metric of a run's result.")]
    low: A[
        float,
        Meta(ge=0, le=LARGEST),
        key("Smallest claimed ratio of the value with the lever on to the value with it off."),
    ]
    high: A[float, Meta(ge=0, le=LARGEST), key("Largest such ratio.")]
    text: A[Text, key("The claim in words, with its source.")]
    labels: A[dict[str, str], key("Labels of the metric.")] = {}
    device: A[Device | None, key("Device that the claim is about; by default any.")] = None


class LeverTable(_Table, frozen=True):
    """[lever.NAME]."""

    off: A[Text, key("Case without the lever: a table of one case, or a resolved name.")]
    on: A[Text, key("Case with the lever, in the same block.")]
    claims: A[list[Claim], Meta(min_length=1, title="a list of tables, each a claim"), key("What a textbook claims.")]


class SuiteTable(_Table, frozen=True, kw_only=True):
    """Keys above all tables, and the tables."""

    schema_version: A[int, Meta(ge=1, le=SCHEMA_VERSION), key("Version of the file format.")]
    name: A[Name | None, key("Name of the suite; by default the file's name without its ending.")] = None
    description: A[Text | None, key("What the suite is for.")] = None
    nightly: A[bool, key("Shows results at /metrics even if they measure less than usual.")] = False
    period_hours: A[A[float, Meta(ge=0.01, le=10**5)] | None, key(PERIOD)] = None
    defaults: A[Defaults, key("Values of all cases that do not set them.")] = Defaults()
    case: A[dict[Name, CaseTable], Meta(min_length=1), key("The cases, a table each: [case.NAME].")]
    lever: A[dict[Name, LeverTable], key("Options on and off, compared with textbooks: [lever.NAME].")] = {}


def json_schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of suite files, in which every key has a description."""
    schema = msgspec.json.schema(SuiteTable)
    for table in ("Defaults", "CaseTable"):
        schema["$defs"][table]["properties"]["options"] |= option_schemas()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Suite of Parallel Observatory",
        "description": "Cases that `observatory suite run` measures; docs/guides/suites.md.",
        **schema,
    }
