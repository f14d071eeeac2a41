"""What may be asked of checkpoints, what is refused beforehand, and that cases without them stay what they were."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest

from bench.case import Case, InstrumentationOptions, baseline_case, check, check_instrumentation, settings_of
from bench.errors import Misuse
from bench.machine.disk import check_disk, checkpoint_bytes, free_bytes
from bench.suite.file import read_suite
from bench.suite.plan import plan_suite, with_disk_warnings
from tests.bench.made.examples import small_case
from tests.bench.made.nodes import CPU
from tests.bench.made.small_disk import on_a_small_disk

CASE = small_case(steps=10)
SAVED = replace(CASE, save_every=5)


def test_a_case_without_checkpoints_keeps_its_key() -> None:
    assert "save" not in CASE.key()
    fields = asdict(CASE)
    del fields["save_every"], fields["save_mode"]
    assert msgspec.convert(fields, Case) == CASE


def test_the_mode_makes_another_series_and_how_often_does_not() -> None:
    assert '"save_mode":"sync"' in SAVED.key()
    assert SAVED.key() == replace(SAVED, save_every=2).key()
    assert len({case.key() for case in (CASE, SAVED, replace(SAVED, save_mode="async"))}) == 3


def test_the_settings_of_a_case_name_its_checkpoints() -> None:
    assert set(settings_of(SAVED)) - set(settings_of(CASE)) == {"save_every=5"}
    assert "save_mode=async" in settings_of(replace(SAVED, save_mode="async"))


def test_a_baseline_saves_nothing() -> None:
    assert baseline_case(SAVED, "weak").save_every is None


def test_a_checkpoint_of_bf16_weights_also_has_their_master() -> None:
    halves = replace(SAVED, precision="bf16", options={**SAVED.options, "weights": "bf16"})
    assert checkpoint_bytes(SAVED) == 12 * SAVED.shape.parameters()
    assert checkpoint_bytes(halves) == 14 * SAVED.shape.parameters()


REFUSED = (
    ({"save_every": 0}, "save-every is 0; it must be 1 or more measured steps"),
    ({"save_every": 11}, "save-every is 11, but 10 steps of a trial are measured.*use --save-every 10 or less"),
    ({"save_mode": "async"}, "save-mode is async, but no checkpoint is saved; add --save-every 5"),
)


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_what_saves_nothing_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        check(replace(CASE, **fields))  # type: ignore[arg-type]


def test_keeping_without_saving_is_refused() -> None:
    with pytest.raises(Misuse, match="none is saved; add --save-every 5"):
        check_instrumentation(InstrumentationOptions(keep_checkpoint=True), CASE)


def test_a_checkpoint_that_the_disk_lacks_room_for_is_refused_beforehand(tmp_path: Path) -> None:
    needed = checkpoint_bytes(SAVED)
    check_disk(SAVED, tmp_path, free=lambda _: needed)
    check_disk(SAVED, tmp_path, free=lambda _: None)
    check_disk(CASE, tmp_path, free=lambda _: 0)
    with pytest.raises(Misuse, match=f"has {needed:,} bytes, and the disk of .* has {needed - 7:,} free; free 7 bytes"):
        check_disk(SAVED, tmp_path, free=lambda _: needed - 7)


def test_the_room_is_that_of_the_folder_that_runs_would_be_made_in(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "none" / "yet") is not None


SMALL = ["--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--vocabulary=512", "--sequence=8"]


@pytest.mark.slow
def test_a_disk_that_fills_up_in_a_save_is_said_in_a_line(tmp_path: Path) -> None:
    """The tensors would fit, and what torch writes with them does not. The log is written in the room made again."""
    disk = tmp_path / "disk"
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}
    run = [sys.executable, "-P", "-m", "bench", "run", "ddp", "--device=cpu", "--ranks=2", "--batch=4", *SMALL]
    full = subprocess.run(
        on_a_small_disk(disk, *run, "--trials=1", "--steps=4", "--trace-steps=0", "--save-every=2", f"--runs={disk}"),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert full.returncode == 4, full.stderr
    said = "failed: rank [01] .*: No space left on device: a checkpoint in .*"
    lines = re.findall(said, full.stderr)
    assert len(lines) == 1
    assert "for each of 2 ranks; free as much, or choose another disk with --runs" in lines[0]
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "show", "--format=json"],
        capture_output=True,
        check=True,
        env=environment,
        timeout=120,
    )
    assert [run["outcome"] for run in json.loads(shown.stdout)] == ["failed"]


@pytest.mark.parametrize(("keep", "copies"), [("false", 1), ("true", 3)])
def test_a_suite_case_whose_checkpoints_do_not_fit_on_the_disk_has_a_warning(
    keep: str, copies: int, tmp_path: Path
) -> None:
    path = tmp_path / "night.toml"
    path.write_text(
        f"schema_version = 1\n[case.ddp]\nranks = 2\ntrials = 3\nsave_every = 5\nkeep_checkpoint = {keep}\n"
        "[case.zero1]\nranks = 2\n"
    )
    plan = plan_suite(read_suite(path), CPU, "no history")
    case = plan.cases[0].case
    assert case is not None
    needed = copies * 12 * case.shape.parameters()
    assert with_disk_warnings(plan, tmp_path, free=lambda _: needed) == plan
    assert with_disk_warnings(plan, tmp_path, free=lambda _: None) == plan
    short = with_disk_warnings(plan, tmp_path, free=lambda _: needed - 7)
    (warning,) = set(short.cases[0].crowds) - set(plan.cases[0].crowds)
    assert f"{needed:,} bytes, and the disk of {tmp_path} has {needed - 7:,} free: a save would fail" in warning
    assert "free 7 bytes" in warning
    assert short.cases[1].crowds == plan.cases[1].crowds
