"""What is offered to try: options that the strategy takes, and commands that ask for the run's own case."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.diagnose.laws import exposed_ratio
from bench.analysis.diagnose.levers import changed, run_command, try_command, with_levers
from bench.analysis.diagnose.observed import KINDS, CostFinding, CostKind, Observed, Remedy
from bench.case import Case
from bench.cli.main import run
from tests.bench.made.diagnosed import FAST, case_of, observed_of
from tests.bench.made.scaled import Made
from workloads.cost_models.communication import Link
from workloads.cost_models.shape import PRESETS
from workloads.registry import SPECS

TRAINING = [spec.name for spec in SPECS if spec.kind == "training" and spec.name not in ("single", "deepspeed")]


def _offered(case: Case, kind: CostKind) -> CostFinding:
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.04)
    return with_levers(CostFinding(kind=kind, share=None), observed_of(case, made))


@pytest.mark.parametrize("strategy", TRAINING)
def test_each_offered_setting_is_one_that_the_strategy_can_run_with(strategy: str) -> None:
    model = replace(PRESETS["tiny"], layers=8, kv_heads=4, batch=48)
    case = case_of(strategy, 4, model=model)
    assert not case.spec().all_refusals(case)
    offered = [lever for kind in KINDS for lever in _offered(case, kind).levers if lever.settings]
    assert offered
    for lever in offered:
        tried = changed(case, lever.settings)
        assert not tried.spec().all_refusals(tried)
        assert tried != case


def test_each_kind_but_the_unknown_offers_something() -> None:
    assert [kind for kind in KINDS if not _offered(case_of(), kind).levers] == ["unknown"]


def test_what_is_set_already_is_not_offered() -> None:
    settings = [
        dict(lever.settings)
        for lever in _offered(case_of(options={"compress": "bf16"}), "exposed_communication").levers
    ]
    assert {"compress": "bf16"} not in settings


def test_what_the_law_says_changes_nothing_is_left_out() -> None:
    """Where latency is all and one bucket holds all gradients, neither other buckets nor fewer bytes are faster."""
    made = Made(step_s=0.4, compute_s=0.1, exposed_s=0.3)
    observed = observed_of(case_of(), made, link=Link(bandwidth_bytes_per_second=1e12, latency_s=1e-2))
    expected = exposed_ratio(observed)
    assert expected == pytest.approx(6 * 1e-2 / 0.4, rel=0.01)
    found = with_levers(CostFinding(kind="exposed_communication", share=None, expected=expected), observed)
    assert [dict(lever.settings) for lever in found.levers] == [{}]


CASES = [
    case_of("ddp", 2, options={"overlap": False, "bucket_mb": 1.5}),
    case_of("gpipe", 4, options={"microbatches": 8, "balance": "flops"}),
    case_of("fsdp", 2, precision="bf16", options={"checkpoint": "full"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.strategy)
def test_a_command_to_run_asks_for_the_same_case(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    words = run_command(case, "--trials 5").split()[1:]
    assert run([*words, "--dry-run", "--format", "json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["key"] == case.key()
    assert document["case"]["trials"] == 5


def test_a_command_names_the_backend_where_it_is_not_the_devices_usual_one() -> None:
    case = case_of("ddp", 2, device="cuda", backend="gloo")
    assert "--device cuda --backend gloo" in run_command(case)
    assert "--backend" not in run_command(case_of("ddp", 2, device="cuda", backend="nccl"))


def test_a_comparison_has_the_setting_on_one_side_alone() -> None:
    command = try_command(CASES[0], Remedy(words="", settings={"overlap": "true"}))
    assert command == (
        "observatory compare --ab ddp --ranks 2 --device cpu --batch 16 --option bucket_mb=1.5"
        " --a overlap=false --b overlap=true"
    )


def test_on_several_nodes_the_setting_is_tried_by_a_run() -> None:
    case = case_of("ddp", 4, nodes=2, options={"overlap": False})
    command = try_command(case, Remedy(words="", settings={"overlap": "true"}))
    assert (
        command == "observatory run ddp --ranks 4 --nodes 2 --engine ENGINE --device cpu --batch 16"
        " --option bucket_mb=25.0 --option overlap=true"
    )


def test_a_run_of_one_node_has_no_more_ranks_than_cores_to_try() -> None:
    observed: Observed = observed_of(case_of(), Made(step_s=0.1, compute_s=0.1), link=FAST, cores=2)
    found = with_levers(CostFinding(kind="host", share=None), observed)
    assert found.levers[0].words == "no more threads than cores: --ranks 2 a node, or more nodes"
