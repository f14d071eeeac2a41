"""The keys of a suite file: what each is for and what it may be; their checks and their JSON Schema follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args, get_type_hints

from bench.analysis.regressions.settings import SETTINGS
from bench.analysis.scaling.efficiency import Scaling
from bench.case import LEAST, MOST
from bench.rank.messages import FailureCause, TrialOutcome
from bench.suites.form.key_types import NAME, Free, JsonSchema, Key, Named, Record, Scalar, Several
from collectors.metrics.registry import METRICS
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.registry import SPECS
from workloads.spec import LARGEST, Backend, Device, Option, Precision

SCHEMA_VERSION = 1
MOST_OF_DIMENSION = {"layers": 10_000}
"""Dimensions that no model has more of; cost models list each layer's weights."""

_TEXT = Scalar(kind="string")
_NAME = Scalar(kind="string", pattern=NAME)
_SWITCH = Scalar(kind="boolean")


def _words(words: Iterable[str]) -> Scalar:
    return Scalar(kind="string", choices=tuple(words))


def _whole(minimum: int, maximum: int = LARGEST) -> Scalar:
    return Scalar(kind="integer", minimum=minimum, maximum=maximum)


def _of_case(name: str, help: str) -> Key:  # noqa: A002
    """Return the key of a number of a case, within the limits of `bench.case`."""
    return Key(name=name, value=_whole(LEAST[name], MOST.get(name, LARGEST)), help=help, sweeps=True)


def _option_keys() -> tuple[Key, ...]:
    """Return a key for each option of any strategy, which allows what any of its strategies does."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for spec in SPECS:
        for option in spec.options:
            found.setdefault(option.name, []).append((spec.name, option))
    keys = []
    for name, takers in found.items():
        options = [option for _, option in takers]
        kinds: dict[type, Literal["boolean", "integer", "number", "string"]] = {
            bool: "boolean",
            int: "integer",
            float: "number",
            str: "string",
        }
        choices = tuple(dict.fromkeys(choice for option in options for choice in option.choices))
        least = [option.minimum for option in options if option.minimum is not None]
        value = Scalar(
            kind=kinds[type(options[0].default)],
            choices=choices,
            minimum=min(least) if len(least) == len(options) else None,
        )
        whose = "many strategies" if len(takers) > 6 else ", ".join(strategy for strategy, _ in takers)
        help_text = f"Of {whose}: {options[0].help}."
        keys.append(Key(name=name, value=value, help=help_text, sweeps=True))
    return tuple(keys)


STRATEGY = Key(
    name="strategy",
    value=_words(spec.name for spec in SPECS),
    help="Strategy or probe; by default the name of the table.",
    sweeps=True,
)
TRAINING_KEYS: tuple[Key, ...] = (
    Key(name="shape", value=_words(PRESETS), help="Preset of the model's dimensions; by default tiny.", sweeps=True),
    *(
        Key(
            name=name,
            value=_whole(1, MOST_OF_DIMENSION.get(name, 2**31 - 1)),
            help="Sequences of one step over all ranks."
            if name == "batch"
            else f"Takes the place of the shape's {name}.",
            sweeps=True,
        )
        for name in DIMENSIONS
    ),
    _of_case("trace_steps", "Steps under the profiler, after the measured ones; by default 3."),
    Key(name="keep_traces", value=_SWITCH, help="Keep each rank's trace beside its Timeline."),
    Key(name="trace_every", value=_whole(1), help="Trace again after each so many measured steps."),
    Key(name="memory_snapshot", value=_SWITCH, help="Record the memory of one step: by category, and its blocks."),
    Key(
        name="scaling",
        value=_words(get_args(Scaling)),
        help="Makes the cases a scaling curve over their ranks. weak: the batch is the baseline's, and grows with the"
        " ranks that train; strong: the batch stays.",
    ),
    Key(
        name="baseline",
        value=_TEXT,
        help="Case that scaling efficiency is relative to: a table, or a resolved name. By default, on a curve, the"
        " case of the fewest ranks.",
    ),
)
"""Keys of a model or of its training, which a probe does not take."""
DEFAULT_KEYS: tuple[Key, ...] = (
    _of_case("ranks", "Number of ranks; by default as many as there are GPUs, or 2 on a CPU, as the strategy allows."),
    *TRAINING_KEYS,
    Key(name="device", value=_words(get_args(Device)), help="By default cuda where a GPU is, else cpu.", sweeps=True),
    Key(name="backend", value=_words(get_args(Backend)), help="By default nccl on cuda, gloo on cpu.", sweeps=True),
    Key(name="precision", value=_words(get_args(Precision)), help="Of the arithmetic; by default fp32.", sweeps=True),
    _of_case("threads", "CPU threads of a rank; by default 1."),
    _of_case("trials", "Times that fresh ranks measure the case; by default 3."),
    _of_case("steps", "Measured steps of a trial; by default 20."),
    _of_case("warm_up", "Unmeasured steps before them; by default 5."),
    _of_case("seed", "Of weights and data; by default 0."),
    Key(
        name="options",
        value=Free(what="a table of the strategy's options", offered=_option_keys()),
        help="Options of the strategy; `observatory list STRATEGY` describes them.",
    ),
    Key(
        name="zip",
        value=Several(
            item=Several(item=_TEXT, what="a list of keys", is_unique=True),
            what='a list of lists of keys, such as [["ranks", "batch"]]',
        ),
        help="Lists that move together, by the names of their keys, such as [['ranks', 'batch']].",
    ),
    Key(
        name="exclude",
        value=Several(
            item=Free(what="a table of values of sweeps"),
            what='a list of tables, such as [{ ranks = 8, precision = "bf16" }]',
        ),
        help="Combinations of the sweeps' values that are left out.",
    ),
    Key(
        name="block",
        value=_NAME,
        help="Cases of one block are measured in turn, trial by trial; by default those of a table, and of the table"
        " of its baseline.",
    ),
    Key(
        name="limit_s",
        value=Scalar(kind="number", minimum=1, maximum=10**7),
        help="Seconds that a trial may take; by default 600.",
    ),
    Key(
        name="retries",
        value=_whole(0, 10),
        help="Further attempts after a failure of the infrastructure, never after a wrong or slow result; usually 1.",
    ),
    Key(
        name="tags",
        value=Several(item=_NAME, what="a list of names", is_unique=True),
        help="Names by which --only chooses cases.",
    ),
    Key(
        name="importance",
        value=_whole(-1_000_000, 1_000_000),
        help="Within a budget, cases of higher importance come first; by default 0.",
    ),
    Key(
        name="needs",
        value=Record(
            keys=(
                Key(name="gpus", value=_whole(0, 10**6), help="GPUs of each node."),
                Key(
                    name="memory_bytes",
                    value=Scalar(kind="number", minimum=0),
                    help="Memory of each GPU, or of the host where the case runs on a CPU.",
                ),
                Key(
                    name="nodes",
                    value=_whole(1, MOST["ranks"]),
                    help="Nodes; by default as many as have a GPU for each rank.",
                ),
            )
        ),
        help="What the case needs beside what follows from it; where it is not there, the case is skipped.",
    ),
    Key(
        name="gate",
        value=Record(
            keys=(
                Key(
                    name="margin",
                    value=Scalar(kind="number", minimum=SETTINGS.smallest_change, maximum=1),
                    help="Largest change of a figure that does not matter: 0.05 is 5 %. What is worse by less is"
                    " accepted.",
                    is_required=True,
                ),
            )
        ),
        help="How `observatory check` judges the case, where that is unlike other cases.",
    ),
    Key(
        name="inject",
        value=_TEXT,
        help="Fire drill: a fault as KIND@RANK:STEP, such as kill@1:3; KIND is raise, kill, hang, exit or leave.",
        sweeps=True,
    ),
    Key(
        name="expect",
        value=Record(
            keys=(
                Key(
                    name="outcome",
                    value=_words(get_args(TrialOutcome)),
                    help="How the case must end.",
                    is_required=True,
                ),
                Key(
                    name="cause",
                    value=_words(get_args(get_type_hints(FailureCause)["kind"])),
                    help="Kind of the root cause that must be named.",
                ),
                Key(name="rank", value=_whole(0, MOST["ranks"] - 1), help="Rank that must be the root cause."),
            )
        ),
        help="How a fire drill must end; such an end is no failure.",
    ),
)
"""Keys of [defaults]."""
CASE_KEYS: tuple[Key, ...] = (STRATEGY, *DEFAULT_KEYS)
"""Keys of a case's table."""
_CLAIM_KEYS = (
    Key(
        name="metric",
        value=_words(metric.name for metric in METRICS if metric.scope == "run"),
        help="Metric of a run's result.",
        is_required=True,
    ),
    Key(name="labels", value=Free(what="a table of texts", is_text=True), help="Labels of the metric."),
    Key(
        name="low",
        value=Scalar(kind="number", minimum=0),
        help="Least value with the lever on, divided by that with it off, that is as claimed.",
        is_required=True,
    ),
    Key(name="high", value=Scalar(kind="number", minimum=0), help="Most such value.", is_required=True),
    Key(name="text", value=_TEXT, help="The claim in words, with its source.", is_required=True),
    Key(
        name="device",
        value=_words(get_args(Device)),
        help="Device that the claim is about; by default any. On another one it is not judged.",
    ),
)
LEVER_KEYS: tuple[Key, ...] = (
    Key(
        name="off",
        value=_TEXT,
        help="Case without the lever: a table of one case, or a resolved name.",
        is_required=True,
    ),
    Key(name="on", value=_TEXT, help="Case with the lever, in the same block.", is_required=True),
    Key(
        name="claims",
        value=Several(item=Record(keys=_CLAIM_KEYS), what="a list of tables, each a claim"),
        help="What a textbook claims for the lever.",
        is_required=True,
    ),
)
TOP_KEYS: tuple[Key, ...] = (
    Key(
        name="schema_version",
        value=_whole(SCHEMA_VERSION, SCHEMA_VERSION),
        help="Version of this form of file.",
        is_required=True,
    ),
    Key(name="name", value=_NAME, help="Name of the suite; by default the file's without its ending."),
    Key(name="description", value=_TEXT, help="What the suite is for."),
    Key(
        name="nightly",
        value=_SWITCH,
        help="Results are shown at /metrics though they measure less than usual; by default false.",
    ),
    Key(
        name="period_hours",
        value=Scalar(kind="number", minimum=0.01, maximum=10**5),
        help="How often the suite is meant to run; an alert tells when it did not.",
    ),
    Key(
        name="defaults",
        value=Record(keys=DEFAULT_KEYS, has_heading=True),
        help="Values of all cases that do not set them.",
    ),
    Key(
        name="case",
        value=Named(table=Record(keys=CASE_KEYS)),
        help="The cases, a table each: [case.NAME].",
        is_required=True,
    ),
    Key(
        name="lever",
        value=Named(table=Record(keys=LEVER_KEYS)),
        help="Options on and off, compared with what textbooks claim, a table each: [lever.NAME].",
    ),
)
"""Keys above all tables, and the tables."""


def json_schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of suite files, in which every key has a description."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Suite of Parallel Observatory",
        "description": "Cases that `observatory suite run` measures; docs/suites.md.",
        **Record(keys=TOP_KEYS).schema(),
    }
