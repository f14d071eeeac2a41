"""What was measured is kept: in the run's folder and in the history, whatever one of them refuses."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import Purpose
from bench.errors import InfrastructureFailed, Misuse
from bench.results.estimate import estimate
from bench.session.persist import check_baseline, check_hardware, persist
from bench.session.recover import recover_runs
from bench.store import run_dir
from bench.store.history import History
from bench.store.run_dir import begin, load, summarise
from collectors.metrics.probes import RUN_LINK_BANDWIDTH
from collectors.metrics.results import RUN_EXPECTED_EFFICIENCY
from tests.bench.made.examples import SMALL, make_machine, make_probe, make_summary, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import CAUSE, DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, ddp_summary, find, measure_fake


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as opened:
        yield opened


def test_efficiency_is_read_against_the_baseline_measured_beside_the_run(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    measured = measure_fake(tmp_path, engine, SINGLE, DDP)
    single, ddp = persist(measured.summaries, engine.machine(), history, explicit_baseline=None).summaries
    assert single.scaling == ()
    (found,) = ddp.scaling
    assert (found.scaling, found.baseline_run, found.is_beside) == ("weak", single.run, True)
    # Tokens per second and rank: 32 tokens in 0.7 / 3 s on 2 ranks of ddp, 16 in 0.16 s of single.
    assert found.ratio.value == pytest.approx((32 / (0.7 / 3) / 2) / (16 / 0.16))
    assert found.ratio.low is not None


def test_an_efficiency_has_the_expected_one_beside_it_where_the_link_was_measured(
    tmp_path: Path, history: History
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    first, second = (measure_fake(tmp_path / name, engine, SINGLE, DDP).summaries for name in ("before", "after"))
    _, without = persist(first, engine.machine(), history, explicit_baseline=None).summaries
    assert any(
        note.startswith("expected weak scaling efficiency is absent: no sweep of all_reduce on 2 ranks")
        for note in without.notes
    )
    sweep = make_summary("sweep", case=make_probe("collectives", 2), hardware=without.hardware, scaling=())
    bandwidth = estimate(RUN_LINK_BANDWIDTH, [1e30], collective="all_reduce")
    history.add(replace(sweep, estimates=(bandwidth,)), make_machine())
    single, ddp = persist(second, engine.machine(), history, explicit_baseline=None).summaries
    found = find(ddp, RUN_EXPECTED_EFFICIENCY, scaling="weak", baseline="beside")
    assert found.median == pytest.approx(1.0)
    assert not any(one.metric == RUN_EXPECTED_EFFICIENCY.name for one in single.estimates)


def test_efficiency_is_read_against_the_newest_baseline_of_the_history(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    strong = replace(SINGLE, model=SMALL)
    baselines = measure_fake(tmp_path, engine, SINGLE, strong).summaries
    persist(baselines, engine.machine(), history, explicit_baseline=None)
    (ddp,) = persist(
        measure_fake(tmp_path, engine, DDP).summaries, engine.machine(), history, explicit_baseline=None
    ).summaries
    assert [(found.scaling, found.baseline_run, found.is_beside) for found in ddp.scaling] == [
        ("weak", baselines[0].run, False),
        ("strong", baselines[1].run, False),
    ]


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_baseline_that_is_weak_and_strong_gives_one_efficiency(
    is_beside: bool, tmp_path: Path, history: History
) -> None:
    """One of the two ranks is a server, so that one rank trains the whole batch in both scalings."""
    engine = FakeEngine(make_machine(), {"parameter_server": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    served = small_case("parameter_server", ranks=2, trials=3, model=SINGLE.model)
    together = [[SINGLE, served]] if is_beside else [[SINGLE], [served]]
    for cases in together:
        measured = measure_fake(tmp_path, engine, *cases).summaries
        kept = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    assert [(found.scaling, found.is_beside) for found in kept[-1].scaling] == [("weak", is_beside)]


def test_a_baseline_beside_the_run_has_no_other_added_from_the_history(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    persist(
        measure_fake(tmp_path, engine, replace(SINGLE, model=SMALL)).summaries,
        engine.machine(),
        history,
        explicit_baseline=None,
    )
    measured = measure_fake(tmp_path, engine, SINGLE, DDP).summaries
    _, ddp = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    assert [found.scaling for found in ddp.scaling] == ["weak"]


@pytest.mark.parametrize(
    ("of_baseline", "why"),
    [
        ({"case": replace(SINGLE, warm_up=0)}, "0 warm-up steps, the run 1"),
        ({"case": replace(SINGLE, steps=1)}, "1 measured steps, the run 3"),
        ({"trials_done": 1}, "1 trial done, the run 3"),
        ({"torch_version": "2.11.0"}, "torch 2.11.0, the run"),
        ({"commit": "0123456789abcdef"}, "commit 0123456789ab, the run"),
        ({"started_ns": 0}, "days, but at most 14 are allowed"),
        ({"started_ns": 4 * 10**18}, "days, but at most 14 are allowed"),
    ],
)
def test_a_baseline_of_the_history_that_was_measured_otherwise_is_not_taken(
    of_baseline: dict[str, object], why: str, tmp_path: Path, history: History
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    (single,) = measure_fake(tmp_path, engine, SINGLE).summaries
    history.add(replace(single, **of_baseline), make_machine())  # type: ignore[arg-type]
    measured = measure_fake(tmp_path, engine, DDP).summaries
    (ddp,) = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    assert ddp.scaling == ()
    (note,) = [note for note in ddp.notes if "scaling efficiency is absent" in note]
    assert note.startswith(f"weak scaling efficiency is absent: the newest baseline, {single.run}, has ")
    assert why in note
    (explicit_baseline,) = persist(
        measured, engine.machine(), history, explicit_baseline=history.find(single.run)
    ).summaries
    assert [(found.is_beside, found.baseline) for found in explicit_baseline.scaling] == [(False, "told")]


@pytest.mark.parametrize(
    ("of_machine", "why"),
    [
        ({"driver_version": "535.104.05"}, "driver 535.104.05, the run"),
        ({"own_version": "0.0.9"}, "parallel-observatory 0.0.9, the run"),
        ({"is_dirty": True}, "a source tree with uncommitted changes"),
    ],
)
def test_another_driver_or_code_makes_no_baseline(
    of_machine: dict[str, object], why: str, tmp_path: Path, history: History
) -> None:
    older = replace(make_machine(), **of_machine)  # type: ignore[arg-type]
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    persist(measure_fake(tmp_path, engine, SINGLE).summaries, older, history, explicit_baseline=None)
    (ddp,) = persist(
        measure_fake(tmp_path, engine, DDP).summaries, engine.machine(), history, explicit_baseline=None
    ).summaries
    assert ddp.scaling == ()
    assert any(why in note for note in ddp.notes)


def test_an_older_baseline_that_fits_is_taken_before_a_newer_that_does_not(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    (fits,) = persist(
        measure_fake(tmp_path, engine, SINGLE).summaries, engine.machine(), history, explicit_baseline=None
    ).summaries
    cold = replace(SINGLE, warm_up=0)
    persist(measure_fake(tmp_path, engine, cold).summaries, engine.machine(), history, explicit_baseline=None)
    (ddp,) = persist(
        measure_fake(tmp_path, engine, DDP).summaries, engine.machine(), history, explicit_baseline=None
    ).summaries
    assert [found.baseline_run for found in ddp.scaling] == [fits.run]


def test_a_baseline_of_other_hardware_is_not_taken(tmp_path: Path, history: History) -> None:
    other = replace(make_machine(), cpu="another CPU")
    persist(
        measure_fake(tmp_path, FakeEngine(other, {"single": SINGLE_STEPS_S}), SINGLE).summaries,
        other,
        history,
        explicit_baseline=None,
    )
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (ddp,) = persist(
        measure_fake(tmp_path, engine, DDP).summaries, engine.machine(), history, explicit_baseline=None
    ).summaries
    assert ddp.scaling == ()


def test_a_runs_folder_holds_its_files_each_with_its_schema_version(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (summary,) = persist(
        measure_fake(tmp_path, engine, DDP).summaries, engine.machine(), history, explicit_baseline=None
    ).summaries
    folder = Path(summary.folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "case.json",
        "machine.json",
        "rank0.jsonl",
        "rank1.jsonl",
        "summary.json",
    ]
    assert all('"schema_version":' in path.read_text().replace(" ", "") for path in folder.iterdir())
    assert load(folder) == summary


def test_a_folder_whose_runner_died_is_taken_into_the_history_with_its_complete_trials(
    tmp_path: Path, history: History
) -> None:
    (summary,) = measure_fake(tmp_path / "runs", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    assert recover_runs(tmp_path / "runs", history, None).problems == ()
    adopted = history.find(summary.run)
    assert (adopted.outcome, adopted.trials_done) == ("done", 3)
    assert adopted.estimates == summary.estimates
    assert recover_runs(tmp_path / "runs", history, None).problems == ()


def test_what_a_run_was_for_is_kept_with_it_though_its_runner_died(tmp_path: Path, history: History) -> None:
    purpose = Purpose(note="another cable")
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (summary,) = measure_fake(tmp_path / "runs", engine, DDP, purpose=purpose).summaries
    assert summary.purpose == purpose
    recover_runs(tmp_path / "runs", history, None)
    assert history.find(summary.run).purpose == purpose


def test_a_folder_that_somebody_works_on_is_left_alone(tmp_path: Path, history: History) -> None:
    run = begin(DDP, make_machine(), tmp_path / "runs")
    try:
        assert recover_runs(tmp_path / "runs", history, None).problems == ()
        assert history.known() == frozenset()
    finally:
        run.close()


def test_a_broken_folder_is_named_and_does_not_stop_the_others(tmp_path: Path, history: History) -> None:
    (summary,) = measure_fake(tmp_path / "runs", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    broken = tmp_path / "runs" / "20200101-000000-broken"
    broken.mkdir()
    (broken / "case.json").write_text("{")
    (problem,) = recover_runs(tmp_path / "runs", history, None).problems
    assert str(broken) in problem
    assert history.known() == {summary.run}


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_copy_of_a_runs_folder_leaves_the_history_as_it_is(
    tmp_path: Path, history: History, is_partial: bool
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    measured = measure_fake(tmp_path / "runs", engine, DDP).summaries
    (summary,) = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    copy = tmp_path / "runs" / "a copy"
    shutil.copytree(summary.folder, copy)
    if is_partial:
        (copy / "summary.json").unlink()
    (problem,) = recover_runs(tmp_path / "runs", history, None).problems
    assert problem.startswith(f"{copy} is left out of the history: it is a copy of run {summary.run}")
    assert history.find(summary.run) == summary
    assert (copy / "summary.json").exists() is not is_partial


def test_nothing_is_written_where_a_summary_says_that_its_folder_is(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (summary,) = persist(
        measure_fake(tmp_path / "runs", engine, DDP).summaries, engine.machine(), history, None
    ).summaries
    victim = tmp_path / "victim"
    victim.mkdir()
    run_dir.save(replace(summary, folder=str(victim)))
    moved = Path(shutil.move(victim / "summary.json", Path(summary.folder) / "summary.json"))
    with History(f"sqlite:///{tmp_path / 'other.sqlite'}") as other:
        (adopted,) = recover_runs(tmp_path / "runs", other, None).runs
    assert adopted.folder == str(moved.parent)
    assert list(victim.iterdir()) == []


def test_a_lost_history_is_rebuilt_from_a_folder_that_was_moved(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    measured = measure_fake(tmp_path / "runs", engine, SINGLE, DDP).summaries
    kept = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    shutil.move(tmp_path / "runs", tmp_path / "restored")
    with History(f"sqlite:///{tmp_path / 'new.sqlite'}") as new:
        adopted = recover_runs(tmp_path / "restored", new, None)
        expected = {one.run: replace(one, folder=str(tmp_path / "restored" / one.run)) for one in kept}
        assert {one.run: one for one in adopted.runs} == expected
        assert {run: new.find(run) for run in expected} == expected
        assert recover_runs(tmp_path / "restored", new, None).runs == ()


def test_a_known_run_whose_folder_was_moved_has_its_new_place_and_nothing_else_changed(
    tmp_path: Path, history: History
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    measured = measure_fake(tmp_path / "runs", engine, DDP).summaries
    (kept,) = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    moved = tmp_path / "moved" / kept.run
    run_dir.save(replace(kept, folder=str(moved), outcome="failed"))  # What the history says of a run stays.
    adopted = recover_runs(tmp_path / "moved", history, "sqlite:///another.sqlite")
    assert (adopted.runs, adopted.moved) == ((), (moved,))
    assert adopted.notices() == ("1 run was found in another folder",)
    assert history.find(kept.run) == replace(kept, folder=str(moved))
    assert history.folders() == {kept.run: str(moved)}
    assert recover_runs(tmp_path / "moved", history, None).notices() == ()


@pytest.mark.parametrize("has_another_run", [False, True])
def test_a_copy_or_another_run_of_the_name_is_no_moved_folder(
    tmp_path: Path, history: History, has_another_run: bool
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    measured = measure_fake(tmp_path / "runs", engine, SINGLE, DDP).summaries
    single, ddp = persist(measured, engine.machine(), history, explicit_baseline=None).summaries
    shutil.copytree(single.folder if has_another_run else ddp.folder, tmp_path / "copies" / ddp.run)
    if has_another_run:
        shutil.rmtree(ddp.folder)
    assert recover_runs(tmp_path / "copies", history, None).moved == ()
    assert history.find(ddp.run) == ddp


def test_files_of_two_runs_in_one_folder_are_refused(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    single, ddp = persist(
        measure_fake(tmp_path / "runs", engine, SINGLE, DDP).summaries,
        engine.machine(),
        history,
        explicit_baseline=None,
    ).summaries
    shutil.copyfile(Path(single.folder) / "summary.json", Path(ddp.folder) / "summary.json")
    with pytest.raises(Misuse, match=f"summary.json is of run {single.run}, but case.json next to it of {ddp.run}"):
        load(Path(ddp.folder))


def test_runs_meant_for_any_store_are_taken_where_a_person_asks(tmp_path: Path, history: History) -> None:
    run = begin(DDP, make_machine(), tmp_path / "runs", store="postgresql://me:secret@host/name")
    run.close()
    assert [one.run for one in recover_runs(tmp_path / "runs", history, None, of_every_store=True).runs] == [run.id]


def test_a_baseline_that_cannot_serve_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"single": SINGLE_STEPS_S}, {("single", 0): CAUSE})
    (failed,) = measure_fake(tmp_path, engine, SINGLE).summaries
    with pytest.raises(Misuse, match="has no complete trial"):
        check_baseline(DDP, failed)
    (good,) = measure_fake(tmp_path, FakeEngine(make_machine(), {"single": SINGLE_STEPS_S}), SINGLE).summaries
    check_baseline(DDP, good)
    check_hardware(DDP, make_machine(), good)
    with pytest.raises(Misuse, match="choose a run on this hardware"):
        check_hardware(DDP, replace(make_machine(), cpu="another CPU"), good)


def test_a_run_is_kept_although_its_efficiency_cannot_be_looked_up(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    measured = measure_fake(tmp_path, engine, DDP)
    history = History(f"sqlite:///{tmp_path / 'history.sqlite'}")  # Never entered: it has no tables.
    kept = persist(measured.summaries, engine.machine(), history, explicit_baseline=None)
    history.close()
    assert kept.failures
    assert load(Path(kept.summaries[0].folder)) == kept.summaries[0]


def test_a_run_meant_for_another_store_is_left_to_it(tmp_path: Path, history: History) -> None:
    run = begin(DDP, make_machine(), tmp_path / "runs", store="postgresql://me:secret@host/name")
    run.close()
    assert "secret" not in (run.folder / "case.json").read_text()
    assert recover_runs(tmp_path / "runs", history, None).problems == ()
    assert history.known() == frozenset()
    recover_runs(tmp_path / "runs", history, "postgresql://me:secret@host/name")
    assert history.known() == {run.id}


def test_a_run_in_progress_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    run = begin(DDP, make_machine(), tmp_path)
    with pytest.raises(Misuse, match="is still active"):
        load(run.folder)
    run.close()


@pytest.mark.parametrize("name", ["case.json", "machine.json"])
def test_a_file_of_a_newer_version_is_refused_whatever_its_form(name: str, tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    (Path(summary.folder) / name).write_text('{"schema_version": 99, "of": "another form"}')
    with pytest.raises(Misuse, match=rf"{name}: schema version 99 is newer than 1"):
        summarise(Path(summary.folder), "done", None)


def test_a_folder_without_a_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"holds no run: case.json is missing"):
        load(tmp_path)


def test_runs_cannot_be_made_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFailed, match=r"cannot be written: .*choose another place with --runs"):
        run_dir.begin(DDP, make_machine(), tmp_path / "file" / "runs")


def test_what_one_place_refuses_the_other_keeps(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (summary,) = measure_fake(tmp_path, engine, DDP).summaries
    (Path(summary.folder) / "summary.json").mkdir()  # So that it cannot be written.
    kept = persist([summary], engine.machine(), history, explicit_baseline=None)
    (failure,) = kept.failures
    assert str(failure).startswith(f"{summary.folder}/summary.json cannot be written")
    assert history.find(summary.run) == kept.summaries[0]
