"""The suites that are shipped: each reads, fits its schema and plans; smoke forgets no strategy."""

from __future__ import annotations

import copy
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.analysis.prediction.memory import memory_fit
from bench.machine.machines.machine_file import read_machine
from bench.machine.preflight import check_memory, least_bytes, warn_of_memory
from bench.session.case_args import NodeResources, node_on
from bench.suite.file import Suite, read_suite
from bench.suite.form.document import SHIPPED, find_suite, shipped_suites
from bench.suite.form.tables import CaseTable, LeverTable, SuiteTable, json_schema
from bench.suite.plan import EXTRA, SuitePlan, plan_suite
from tests.bench.made.nodes import CPU, EIGHT_GPUS, GPU_BYTES
from workloads.registry import SPECS, spec_of

NAMES = ("collectives", "levers", "nightly", "scaling", "single_node", "smoke")
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def _suite(name: str) -> Suite:
    return read_suite(find_suite(name))


def _plan(name: str, node: NodeResources) -> SuitePlan:
    return plan_suite(_suite(name), node, "no history")


def _refusals(plan: SuitePlan) -> dict[str, str]:
    """Why cases are refused, but for packages that are extras of this program."""
    return {
        one.suite_case.name: one.refusal
        for one in plan.cases
        if one.refusal is not None and not spec_of(one.suite_case.args.strategy).missing_packages()
    }


def test_these_suites_are_shipped() -> None:
    assert tuple(shipped_suites()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_suite_says_what_it_is_for_and_fits_its_schema(name: str) -> None:
    assert _suite(name).description
    VALIDATOR.validate(tomllib.loads(shipped_suites()[name].read_text()))


@pytest.mark.parametrize("name", ["levers", "nightly", "single_node", "smoke"])
def test_all_cases_run_on_a_node_of_eight_gpus(name: str) -> None:
    assert _refusals(_plan(name, EIGHT_GPUS)) == {}


@pytest.mark.parametrize("name", ["nightly", "smoke"])
def test_all_cases_run_on_a_cpu(name: str) -> None:
    assert _refusals(_plan(name, CPU)) == {}


@pytest.mark.parametrize("node", [EIGHT_GPUS, CPU])
def test_of_collectives_only_the_case_across_nodes_needs_a_second_one(node: NodeResources) -> None:
    assert _refusals(_plan("collectives", node)) == {"across_nodes": "it needs 2 nodes, and this is one"}


def test_collectives_measures_a_node_and_two_with_as_many_ranks_on_each() -> None:
    plan = _plan("collectives", replace(EIGHT_GPUS, nodes=2, ranks_per_node=8))
    cases = [one.possible for one in plan.cases if one.suite_case.args.strategy == "collectives"]
    placed = {(case.ranks, case.nodes) for case in cases if case is not None}
    assert {(8, 1), (16, 2)} <= placed


@pytest.mark.parametrize("name", ["levers", "scaling", "single_node"])
def test_without_gpus_each_case_that_wants_them_says_so(name: str) -> None:
    plan = _plan(name, CPU)
    assert all(one.refusal is not None for one in plan.cases)
    assert all("GPU" in text or "device is cuda" in text or "nodes" in text for text in _refusals(plan).values())


@pytest.mark.parametrize("name", ["levers", "scaling", "single_node"])
def test_what_a_rank_holds_at_least_fits_a_gpu_of_80_gigabytes(name: str) -> None:
    for one in _plan(name, EIGHT_GPUS).cases:
        if one.possible is not None:
            assert least_bytes(one.possible, one.possible.ranks - 1) <= 80e9, one.suite_case.name


def test_on_one_node_the_cases_of_scaling_that_have_one_run() -> None:
    plan = _plan("scaling", EIGHT_GPUS)
    runnable = {one.suite_case.args.ranks for one in plan.cases if one.refusal is None}
    assert runnable == {(8,)}
    assert {one.suite_case.needs.nodes for one in plan.cases} == {1, 2, 4, 8, 16, 32, 64}


# Smoke.


def test_smoke_has_every_strategy_and_probe() -> None:
    assert {case.args.strategy for case in _suite("smoke").cases} == {spec.name for spec in SPECS}


def test_smoke_takes_two_ranks_where_that_is_allowed_on_the_device_that_there_is() -> None:
    ranks = {case.args.strategy: case.args.ranks for case in _suite("smoke").cases}
    most = {spec.name: spec.needs.maximum_ranks for spec in SPECS}
    least = {spec.name: spec.needs.minimum_ranks for spec in SPECS}
    assert {case.args.device for case in _suite("smoke").cases} == {None}
    assert ranks == {name: (min(max(2, least[name]), most[name] or 4),) for name in ranks}


def test_smoke_tags_what_starts_slowly() -> None:
    tagged = {case.table for case in _suite("smoke").cases if EXTRA in case.tags}
    assert tagged == {"deepspeed", "compile"}


# Levers and nightly.


def test_levers_are_compared_in_turn_and_differ_in_the_case_only() -> None:
    suite = _suite("levers")
    cases = {case.name: case for case in suite.cases}
    assert {lever.name for lever in suite.levers} == {
        *("checkpointing", "bf16", "compile", "offload", "no_sync", "overlap", "compression"),
    }
    assert all(cases[lever.off].block == cases[lever.on].block for lever in suite.levers)


def test_nightly_is_shown_and_waited_for() -> None:
    suite = _suite("nightly")
    assert (suite.is_nightly, suite.period_s) == (True, 86400.0)
    assert {case.expect.cause for case in suite.cases if case.expect is not None} == {"killed", "error", "left", "hung"}
    assert all((case.fault is None) == (case.expect is None) for case in suite.cases)


# The schema.


def _described(schema: Any) -> None:
    """Fail on a key without a description."""
    if isinstance(schema, dict):
        for name, key in schema.get("properties", {}).items():
            assert key.get("description"), name
        for value in schema.values():
            _described(value)
    elif isinstance(schema, list):
        for value in schema:
            _described(value)


def test_the_schema_is_one_and_describes_every_key() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    _described(SCHEMA)


def test_the_schema_offers_strategies_and_choices() -> None:
    case = SCHEMA["$defs"]["CaseTable"]["properties"]
    assert case["strategy"]["anyOf"][0]["enum"] == sorted(spec.name for spec in SPECS)
    assert case["precision"]["anyOf"][0]["enum"] == ["bf16", "fp16", "fp32"]
    assert "powersgd" in case["options"]["properties"]["compress"]["anyOf"][0]["enum"]


RIGHT: dict[str, Any] = {
    "schema_version": 1,
    "case": {"ddp": {"ranks": [1, 2], "zip": [["ranks", "batch"]], "batch": [4, 8], "exclude": [{"ranks": 1}]}},
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 2),
        (("case",), {}),
        (("cases",), {}),
        (("defaults",), {"strategy": "ddp"}),
        (("case", "a b"), {}),
        (("case", "ddp", "rank"), 2),
        (("case", "ddp", "ranks"), "two"),
        (("case", "ddp", "ranks"), []),
        (("case", "ddp", "strategy"), "dpp"),
        (("case", "ddp", "options"), {"bucket": 1}),
        (("case", "ddp", "options"), {"compress": "zip"}),
        (("case", "ddp", "needs"), {"gpu": 1}),
        (("case", "ddp", "expect"), {"rank": 1}),
        (("case", "ddp", "limit_s"), [1, 2]),
        (("lever",), {"a": {"off": "ddp", "on": "b"}}),
    ],
)
def test_the_schema_refuses_what_is_wrong(path: tuple[str, ...], value: object) -> None:
    VALIDATOR.validate(RIGHT)
    wrong = copy.deepcopy(RIGHT)
    table = wrong
    for word in path[:-1]:
        table = table[word]
    table[path[-1]] = value
    assert not VALIDATOR.is_valid(wrong)


def test_suites_lie_where_the_wheel_has_them() -> None:
    assert Path(__file__).parents[3] / "bench" / "suite" / "shipped" == SHIPPED


# The page.

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "suites.md").read_text()


def test_the_page_names_every_key_and_every_shipped_suite() -> None:
    tables = (SuiteTable, CaseTable, LeverTable)
    keys = {key for table in tables for key in table.__struct_fields__} - {"defaults", "case", "lever", "claims"}
    assert [name for name in sorted(keys) if f"`{name}`" not in PAGE] == []
    assert [name for name in NAMES if f"| `{name}` |" not in PAGE] == []


def test_the_example_of_the_page_is_a_suite_of_six_cases_in_one_block(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(PAGE.partition("```toml\n")[2].partition("```")[0])
    plan = plan_suite(read_suite(path), CPU, "no history")
    assert len(plan.cases) == 6
    assert {one.suite_case.block for one in plan.cases} == {"single"}
    assert _refusals(plan) == {}


# Whether a step fits, by the cost model of memory on CUDA.

MAY_NOT_FIT: dict[str, set[str]] = {"80 GB": set(), "141 GB": set(), "183 GB": set()}


@pytest.mark.parametrize("memory", GPU_BYTES)
def test_what_may_not_fit_on_a_gpu_is_said_of_each_case_before_it_starts(memory: str) -> None:
    warned = set()
    for name in NAMES:
        judged: set[str] = set()
        for planned in _plan(name, EIGHT_GPUS).cases:
            case = planned.possible
            if case is None or case.device == "cpu":
                continue
            if case.ranks > 64 or (name == "scaling" and planned.suite_case.table in judged):
                continue  # Of a table, the first has the fewest ranks, which hold the most; many take minutes to judge.
            judged.add(planned.suite_case.table)
            gpus = tuple(
                replace(EIGHT_GPUS.gpus.gpus[0], index=index, memory_bytes=GPU_BYTES[memory])
                for index in range(case.ranks)
            )
            check_memory(case, host_bytes=0, gpus=gpus)
            if list(warn_of_memory(case, gpus)):
                warned.add(f"{name}: {planned.suite_case.name}")
    assert warned == MAY_NOT_FIT[memory]


# On machines that are not here.


@pytest.mark.parametrize(
    ("name", "on"), [("single_node", "h100x8"), ("single_node", "a100-80x8"), ("scaling", "h100x8x64")]
)
def test_all_cases_fit_a_machine_of_80_gigabytes(name: str, on: str) -> None:
    machine = read_machine(on)
    plan = _plan(name, node_on(machine))
    assert _refusals(plan) == {}
    unfit = [
        planned.suite_case.name
        for planned in plan.cases
        if planned.case is not None and not memory_fit(planned.case, machine).fits
    ]
    assert unfit == []


def test_single_node_trains_8b_and_scaling_also_70b_and_405b() -> None:
    shapes = {name: {case.args.shape_name for case in _suite(name).cases} for name in ("single_node", "scaling")}
    assert shapes == {"single_node": {"8b", "1b", None}, "scaling": {"1b", "8b", "70b", "405b", None}}
    ranks = {case.args.shape_name: case.args.ranks for case in reversed(_suite("scaling").cases)}
    assert ranks["70b"] == (64,)
