"""Suite files: the declarations of a TOML file as resolved cases, with every sweep expanded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from bench.case import NO_INSTRUMENTATION, Case, InstrumentationOptions, find_spec, parse_options
from bench.errors import Misuse, plural
from bench.results.efficiency import Scaling
from bench.session.case_args import CaseArgs, shape_of
from bench.session.shape_file import is_shape_file
from bench.suite.form.document import read_suite_document
from bench.suite.form.sweeps import Point, is_same, points, text_of
from bench.suite.form.tables import NAME, NAMES, Claim, Expected, SuiteNeeds, SuiteTable, Training
from collectors.metrics.registry import METRICS
from collectors.settings_file import BadSettings, check, nearest, shown
from workloads.cost_models.shape import DIMENSIONS, shape_in_key

MOST_CASES = 2000
"""Most resolved cases of a suite."""
_NONE = SuiteNeeds()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCase:
    """One resolved case of a suite.

    name: `ddp`, or with the values of its sweeps `ddp[ranks=2,bucket_mb=25]`. table: its table in the file. block:
    cases of a block are measured in turn.
    args: with at most one number of ranks.
    baseline: resolved name of the case that efficiency is relative to.
    limit_s: limit of a trial. retries: further attempts after a failure of the infrastructure.
    importance: cases of higher importance come first within a budget.
    fault: KIND@RANK:STEP. expect: how the case must then end.
    """

    name: str
    table: str
    block: str
    args: CaseArgs
    scaling: Scaling | None = None
    baseline: str | None = None
    limit_s: float = 600.0
    retries: int = 1
    tags: tuple[str, ...] = ()
    importance: int = 0
    needs: SuiteNeeds = _NONE
    fault: str | None = None
    expect: Expected | None = None
    keep_traces: bool = False
    instrumentation: InstrumentationOptions = NO_INSTRUMENTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """An option on and off. off, on: resolved names of two cases of the same block."""

    name: str
    off: str
    on: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite, resolved.

    name: the file's stem unless the file sets a name. path: of the file.
    is_nightly: its results are shown at /metrics although they measure less than usual.
    period_s: how often it should run; None if it has no schedule.
    margins: the largest change that does not matter, for cases that set one.
    digest: sha256 of everything that would be measured, including values from the command line.
    """

    name: str
    description: str
    path: Path
    is_nightly: bool
    period_s: float | None
    cases: tuple[SuiteCase, ...]
    levers: tuple[Lever, ...]
    digest: str
    margins: Mapping[str, float] = field(default_factory=dict)


def read_suite(path: Path, settings: Sequence[str] = ()) -> Suite:
    """Return the suite that the file declares.

    settings: `KEY=VALUE` texts that override values of the file, for example `defaults.trials=5`.

    Raises:
        Misuse: the file cannot be read or is wrong; the message names file, table and key.
    """
    try:
        document = read_suite_document(path, settings)
        if isinstance(defaults := document.get("defaults"), dict) and "strategy" in defaults:
            raise Misuse(
                f"{path}: [defaults] has a strategy, but each case names its own, by its table's name or by a key"
            )
        check(document, SuiteTable, str(path))
    except BadSettings as error:
        raise Misuse(str(error)) from None

    tables = _resolve(document, path)
    entries = [entry for table in tables.values() for entry in table]
    cases = tuple(entry.case for entry in entries)
    if len(cases) > MOST_CASES:
        raise Misuse(f"{path} has {len(cases):,} cases; it may have {MOST_CASES:,}: split it into several suites")
    levers = tuple(_lever(name, table, tables, path) for name, table in document.get("lever", {}).items())
    name = document.get("name", path.stem)
    if re.match(NAME, name) is None:
        raise Misuse(
            f'{path}: the file\'s name is not a valid suite name, which is {NAMES}; add a line name = "..." to it'
        )
    is_nightly, hours = document.get("nightly", False), document.get("period_hours")
    declared = msgspec.to_builtins(cases)
    for case, suite_case in zip(declared, cases, strict=True):
        if (shape_name := suite_case.args.shape_name) is not None and is_shape_file(shape_name):
            # The content of the file counts, not its path.
            case["args"]["shape_name"] = shape_in_key(shape_of(suite_case.args))
        if case["args"]["bind"]:  # The default. Older versions lack it, and their suite runs stay resumable.
            del case["args"]["bind"]
        if case["args"]["save_every"] is None:  # Likewise.
            del case["args"]["save_every"], case["args"]["save_mode"]
        if not case["instrumentation"]["keep_checkpoint"]:
            del case["instrumentation"]["keep_checkpoint"]
    content = msgspec.json.encode((name, is_nightly, hours, declared, levers), order="sorted")
    return Suite(
        name=name,
        description=document.get("description", "").strip(),
        path=path,
        is_nightly=is_nightly,
        period_s=None if hours is None else 3600.0 * hours,
        cases=cases,
        levers=levers,
        digest=hashlib.sha256(content).hexdigest(),
        margins={
            entry.case.name: entry.point.values["gate"]["margin"] for entry in entries if "gate" in entry.point.values
        },
    )


# Tables become cases: sweeps are expanded, then baselines are found, and batches of weak scaling follow from these.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    """A case, and the point of its table that it comes from."""

    case: SuiteCase
    point: Point

    @property
    def ranks(self) -> int:
        """Number of ranks; only for cases that set it."""
        assert self.case.args.ranks is not None, "a curve's cases have ranks"
        return self.case.args.ranks[0]


_LISTS = ("tags", "zip", "exclude")
"""Keys whose lists are not sweeps."""
_OF_TRAINING = frozenset(Training.__struct_fields__)
_OF_ARGS = (
    "device",
    "backend",
    "precision",
    "threads",
    "bind",
    "trials",
    "steps",
    "warm_up",
    "trace_steps",
    "seed",
    "save_every",
    "save_mode",
)
"""Keys that are fields of `CaseArgs` with the same names."""


def _resolve(document: Mapping[str, Any], path: Path) -> dict[str, list[_Resolved]]:
    """Return the cases of each table, in the file's order."""
    defaults, tables = document.get("defaults", {}), document["case"]
    merged = {name: _merged(name, own, defaults, f"{path}: [case.{name}]") for name, own in tables.items()}
    by_table: dict[str, list[_Resolved]] = {}
    for name in _baselines_first(merged, path):
        place = f"{path}: [case.{name}]"
        zipped, excluded = merged[name].get("zip", ()), merged[name].get("exclude", ())
        flat = dict(_flat(merged[name]))
        swept = [key for key, value in flat.items() if isinstance(value, list) and key not in _LISTS]
        cases = [
            _Resolved(case=_case(name, point, place, folder=path.parent), point=point)
            for point in points(flat, swept, zipped=zipped, excluded=excluded, place=place)
        ]
        by_table[name] = _with_baselines(cases, merged[name], by_table, place, has_own_batch="batch" in tables[name])
    return {name: by_table[name] for name in tables}


def _merged(name: str, own: Mapping[str, Any], defaults: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the table with the defaults for keys that it does not set; nested tables are merged key by key.

    A probe takes no defaults of models or training.
    """
    strategies = own.get("strategy", name)
    try:
        specs = [find_spec(strategy) for strategy in (strategies if isinstance(strategies, list) else [strategies])]
    except Misuse as error:
        raise Misuse(f"{place} names no strategy, and has no key strategy: {error}") from None
    if len({spec.kind for spec in specs}) > 1:
        raise Misuse(f"{place} strategy has strategies and probes in one list; give probes a table of their own")
    if specs[0].kind == "probe":
        for key in own:
            if key in _OF_TRAINING:
                raise Misuse(f"{place} {key} is for training, and {specs[0].name} is a probe; leave it out")
        defaults = {key: value for key, value in defaults.items() if key not in _OF_TRAINING}
    table = dict(own)
    for key, value in defaults.items():
        if key not in table:
            table[key] = value
        elif isinstance(value, dict):
            table[key] = {
                **table[key],
                **{inner: default for inner, default in value.items() if inner not in table[key]},
            }
    return table


def _baselines_first(tables: Mapping[str, Mapping[str, Any]], path: Path) -> list[str]:
    """Return the names of the tables, each after that of its baseline.

    Raises:
        Misuse: a baseline is not a case of the suite, or baselines form a circle.
    """
    needed: dict[str, set[str]] = {}
    for name, table in tables.items():
        baseline = _table_of(table.get("baseline", name))
        if baseline not in tables:
            raise Misuse(
                f"{path}: [case.{name}] baseline is {shown(table['baseline'])}, which is not a case of the suite"
                f"{nearest(baseline, tables)}; its cases are: {', '.join(tables)}"
            )
        needed[name] = {baseline} - {name}
    try:
        return list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        circle = " > ".join(reversed(error.args[1]))
        raise Misuse(f"{path}: [case.{error.args[1][0]}] baseline is circular: {circle}; break the circle") from None


def _table_of(name: str) -> str:
    """Return the table in a case's name: `ddp` in `ddp[ranks=2]`."""
    return name.partition("[")[0]


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values; options of the strategy get the key `options.NAME`."""
    for key, value in table.items():
        if key == "options":
            yield from ((f"options.{name}", option) for name, option in value.items())
        else:
            yield key, value


def _case(table: str, point: Point, place: str, folder: Path) -> SuiteCase:
    """Return the case of a point, with options and shape checked, but without its baseline.

    folder: folder of the suite file; paths in the file are relative to it.
    """
    values = point.values
    shape = values.get("shape")
    options = tuple(
        f"{key.removeprefix('options.')}={text_of(value)}"
        for key, value in values.items()
        if key.startswith("options.")
    )
    args = CaseArgs(
        strategy=values.get("strategy", table),
        ranks=(values["ranks"],) if "ranks" in values else None,
        shape_name=str(folder / shape) if shape is not None and is_shape_file(shape) else shape,
        dimensions={name: values[name] for name in DIMENSIONS if name in values},
        options=options,
        **{name: values[name] for name in _OF_ARGS if name in values},
    )
    try:
        parse_options(find_spec(args.strategy), options)
    except Misuse as error:
        raise Misuse(f"{place} options: {error}") from None
    try:
        shape_of(args)
    except Misuse as error:
        raise Misuse(f"{place} {error}") from None
    return SuiteCase(
        name=table + point.suffix,
        table=table,
        block=values.get("block", table),
        args=args,
        scaling=values.get("scaling"),
        limit_s=float(values.get("limit_s", 600)),
        retries=values.get("retries", 1),
        tags=tuple(values.get("tags", ())),
        importance=values.get("importance", 0),
        needs=_needs(values.get("needs", {}), args.ranks),
        fault=values.get("inject"),
        expect=Expected(**values["expect"]) if "expect" in values else None,
        keep_traces=values.get("keep_traces", False),
        instrumentation=InstrumentationOptions(
            trace_every=values.get("trace_every"),
            memory_snapshot=values.get("memory_snapshot", False),
            keep_checkpoint=values.get("keep_checkpoint", False),
        ),
    )


def _needs(table: Mapping[str, Any], ranks: tuple[int, ...] | None) -> SuiteNeeds:
    """Return the needs of a table; without a number of nodes, as many as give each rank a GPU."""
    gpus = table.get("gpus", 0)
    nodes = -(-ranks[0] // gpus) if ranks and gpus else 1
    return SuiteNeeds(gpus=gpus, memory_bytes=float(table.get("memory_bytes", 0)), nodes=table.get("nodes", nodes))


# Baselines, and the batches of weak scaling


def _with_baselines(
    cases: Sequence[_Resolved],
    table: Mapping[str, Any],
    others: Mapping[str, Sequence[_Resolved]],
    place: str,
    *,
    has_own_batch: bool,
) -> list[_Resolved]:
    """Return a table's cases with their baselines and, for weak scaling, with the batches that follow from these.

    others: cases of the tables that are already resolved. has_own_batch: the table sets batch itself; a batch from
    [defaults] belongs to the baseline.
    """
    scaling, name = table.get("scaling"), cases[0].case.table
    if scaling is None and "baseline" not in table:
        return list(cases)
    baseline = table.get("baseline", name)
    is_own = _table_of(baseline) == name
    if "ranks" not in table:
        raise Misuse(f"{place} has a {'baseline' if 'baseline' in table else 'scaling'} but no ranks; add ranks")
    if is_own and not isinstance(table["ranks"], list):
        raise Misuse(
            f"{place} has one number of ranks and no baseline with fewer; give it a list of ranks, or a baseline"
        )
    moving = _moving_with_ranks(table)
    if scaling == "weak" and not is_own and "batch" in table and "batch" not in moving:
        if has_own_batch:
            raise Misuse(
                f"{place} batch follows from the baseline's in weak scaling; set it there, and leave it out here"
            )
        if isinstance(table["batch"], list):
            raise Misuse(
                f'{place} has scaling = "weak", so its batch follows from the baseline\'s, and [defaults] batch is a'
                " list; set batch in each case instead"
            )

    entries = []
    for entry in cases:
        base = _baseline_of(entry, baseline, cases if is_own else others[_table_of(baseline)], moving, place)
        case = entry.case
        if base.case is not case:
            case = replace(case, baseline=base.case.name, block=table.get("block", base.case.block))
            if base.ranks >= entry.ranks:
                raise Misuse(
                    f"{place} baseline of {case.name} is {base.case.name}, which does not have fewer ranks than its"
                    f" {entry.ranks}; leave such ranks out, or choose a baseline with fewer"
                )
            if scaling == "weak" and "batch" not in moving:
                case = replace(case, args=_weakly_scaled(case, base.case, place))
        entries.append(replace(entry, case=case))
    return entries


def _moving_with_ranks(table: Mapping[str, Any]) -> set[str]:
    """Return the axes that move together with the ranks, including `ranks`."""
    groups = [{name.rpartition(".")[2] for name in group} for group in table.get("zip", ())]
    return {"ranks"}.union(*(group for group in groups if "ranks" in group))


def _baseline_of(
    entry: _Resolved, name: str, candidates: Sequence[_Resolved], moving: Set[str], place: str
) -> _Resolved:
    """Return the baseline of this name; if it names a table, its matching case with the fewest ranks.

    moving: axes that are ignored when the baseline is matched.
    """
    baselines = [other for other in candidates if name in (other.case.name, other.case.table)]
    if not baselines:
        names = [other.case.name for other in candidates]
        raise Misuse(
            f"{place} baseline is {shown(name)}, which is not a case of the suite{nearest(name, names)};"
            f" its table has: {', '.join(names[:8])}{', ...' * (len(names) > 8)}"
        )
    if any(other.case.args.ranks is None for other in baselines):
        raise Misuse(f"{place} baseline {name} has no ranks; give [case.{baselines[0].case.table}] ranks")
    if len(baselines) > 1:
        shared = (entry.point.swept.keys() & baselines[0].point.swept.keys()) - moving
        baselines = [
            other
            for other in baselines
            if all(is_same(entry.point.swept[axis], other.point.swept[axis]) for axis in shared)
        ]
        fewest = min((other.ranks for other in baselines), default=0)
        baselines = [other for other in baselines if other.ranks == fewest]
    if len(baselines) != 1:
        names = [other.case.name for other in baselines]
        raise Misuse(
            f"{place} baseline of {entry.case.name} is {name}, which matches {' and '.join(names) or 'no case'};"
            " name one case, or give both tables the same lists"
        )
    return baselines[0]


def _weakly_scaled(case: SuiteCase, base: SuiteCase, place: str) -> CaseArgs:
    """Return the case's arguments with a batch that gives each training rank as much work as in the baseline."""
    trained, base_trained = (_training_ranks(side, place) for side in (case, base))
    batch = shape_of(base.args).batch
    if not trained or not base_trained:
        raise Misuse(f"{place} scaling: {(base if trained else case).name} has no rank that trains")
    if batch * trained % base_trained:
        raise Misuse(
            f"{place} scaling: {case.name} trains on {plural(trained, 'rank')}, {base.name} on {base_trained} with"
            f" batch {batch}, which does not make a whole batch; choose a batch that is a multiple of {base_trained}"
        )
    return replace(case.args, dimensions={**case.args.dimensions, "batch": batch * trained // base_trained})


def _training_ranks(suite_case: SuiteCase, place: str) -> int:
    """Return how many ranks share the work of a batch, according to the strategy's spec."""
    args, spec = suite_case.args, find_spec(suite_case.args.strategy)
    assert args.ranks is not None, "a curve's cases have ranks"
    case = Case(
        strategy=spec.name,
        version=spec.version,
        ranks=args.ranks[0],
        model=shape_of(args),
        device="cpu",
        backend="gloo",
        precision=args.precision or "fp32",
        **{name: getattr(args, name) for name in _OF_ARGS if name not in ("device", "backend", "precision")},
        options=parse_options(spec, args.options),
    )
    try:
        spec.data_share(case, 0)
        return spec.training_ranks(case)
    except ZeroDivisionError:  # A mesh with an axis of 0 ranks; a checked case cannot have one.
        raise Misuse(
            f"{place} ranks of {suite_case.name} is {case.ranks}, too few for its options; {spec.name} needs"
            f" {spec.needs.text()}"
        ) from None


# Levers


def _lever(name: str, table: Mapping[str, Any], cases: Mapping[str, Sequence[_Resolved]], path: Path) -> Lever:
    place = f"{path}: [lever.{name}]"
    off, on = (_one_case(table[key], cases, f"{place} {key}") for key in ("off", "on"))
    if off.block != on.block:
        raise Misuse(
            f"{place} compares {off.name} of block {off.block} with {on.name} of block {on.block}, which are not"
            " measured in turn; give both the same block"
        )
    if off.name == on.name:
        raise Misuse(f"{place} has {off.name} for off and for on; name two cases")
    claims = tuple(Claim(**claim) for claim in table["claims"])
    for number, claim in enumerate(claims):
        if claim.low > claim.high:
            raise Misuse(
                f"{place} claims[{number}].low is {claim.low:g} and high {claim.high:g}; low must be at most high"
            )
        labels = next(metric.labels for metric in METRICS if metric.name == claim.metric)
        if set(labels) != set(claim.labels):
            raise Misuse(
                f"{place} claims[{number}].labels is {shown(claim.labels)}; {claim.metric} has the labels"
                f" {', '.join(labels) or 'none'}"
            )
    return Lever(name=name, off=off.name, on=on.name, claims=claims)


def _one_case(name: str, cases: Mapping[str, Sequence[_Resolved]], place: str) -> SuiteCase:
    everywhere = [entry.case for table in cases.values() for entry in table]
    matches = [case for case in everywhere if name in (case.name, case.table)]
    if len(matches) == 1:
        return matches[0]
    names = [case.name for case in matches or everywhere]
    what = "which is not a case of the suite" if not matches else "a table of several cases"
    allowed = ", ".join(names[:8]) + ", ..." * (len(names) > 8)
    raise Misuse(f"{place} is {shown(name)}, {what}{nearest(name, names)}; it may be {allowed}")
