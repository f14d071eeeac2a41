"""`observatory dashboards`: what is written, and what is stale."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import main
from dashboards import panels, render
from dashboards.publishing.publish import read_rendered
from dashboards.rules import TEMPLATE
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serve


def _observatory(*arguments: str | Path) -> int:
    return main.run(["dashboards", *map(str, arguments)])


def test_render_names_what_it_wrote_and_then_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _observatory("render", "--into", tmp_path) == 0
    written = capsys.readouterr().out.splitlines()
    assert written == [str(path) for path in render.render()]
    assert all((tmp_path / path).is_file() for path in written)
    assert _observatory("render", "--into", tmp_path) == 0
    assert capsys.readouterr().out == ""


def test_a_rule_with_an_unknown_metric_is_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    """By a copy of this package with another template, as of somebody who changes a rule."""
    changed, into = tmp_path / "changed", tmp_path / "into"
    into.mkdir()
    shutil.copytree(
        render.CHECKOUT / "dashboards", changed / "dashboards", ignore=shutil.ignore_patterns("rendered", "__pycache__")
    )
    template = changed / "dashboards" / TEMPLATE.name
    template.write_text(template.read_text().replace("observatory_agent_age_seconds", "observatory_agent_ages_seconds"))
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "dashboards", "render", "--into", into],
        env={**os.environ, "PYTHONPATH": str(changed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout, list(into.iterdir())) == (2, "", [])
    assert ended.stderr == (
        "observatory: rules.yaml.in: NodeCollectorStale: observatory_agent_ages_seconds is not a metric of the"
        " catalogue;"
        " did you mean observatory_agent_age_seconds? (docs/metrics.md lists all)\n"
    )


def test_render_deletes_our_own_and_leaves_what_is_somebody_elses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / render.RENDERED
    (folder / "sub.json").mkdir(parents=True)
    theirs = {
        "my-own.json": b'{"tags": ["ours"], "uid": "parallel-observatory"}',
        "list.json": b'["parallel-observatory"]',
        "no-json.json": b"parallel-observatory \xff",
        "deep.json": b"[" * 100_000,
        "notes.txt": b"parallel-observatory",
        "rules.yml": b"groups: []",
    }
    for name, text in theirs.items():
        (folder / name).write_bytes(text)
    (folder / "gone.json").write_text('{"tags": ["parallel-observatory"]}')
    assert _observatory("render", "--into", tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"deleted {render.RENDERED / 'gone.json'}"
    assert not (folder / "gone.json").exists()
    assert {name: (folder / name).read_bytes() for name in theirs} == theirs
    assert _observatory("render", "--check", "--into", tmp_path) == 0


@pytest.mark.parametrize("path", [render.METRICS_PAGE, render.RULES, render.RENDERED / "fleet.json"])
def test_render_overwrites_no_file_that_it_did_not_make(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(b"theirs \xff")
    assert _observatory("render", "--into", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} was not made by `observatory dashboards render`, which would overwrite it; move it" in line
    assert [one.relative_to(tmp_path) for one in tmp_path.rglob("*") if one.is_file()] == [path]
    assert (tmp_path / path).read_bytes() == b"theirs \xff"


def test_the_rules_have_the_thresholds_of_a_users_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[gpus]\nbraked_ratio = 0.375\n[links]\ngrafana = 'https://grafana.example'\n")
    assert _observatory("render", "--into", tmp_path) == 0
    assert "0.375" not in (tmp_path / render.RULES).read_text()
    assert _observatory("render", "--into", tmp_path, "--thresholds", mine) == 0
    rules = (tmp_path / render.RULES).read_text()
    assert "> 0.375" in rules
    assert "dashboard_url: https://grafana.example/d/observatory-one-gpu?" in rules
    assert "localhost:3000" not in rules
    assert "runbook_url" not in rules  # Nobody knows where people read them.
    mine.write_text("[links]\nrunbooks = 'https://git.example/runbooks'\n")
    assert _observatory("render", "--into", tmp_path, "--thresholds", mine) == 0
    assert "runbook_url: https://git.example/runbooks/gpu-lost.md" in (tmp_path / render.RULES).read_text()
    mine.write_text("[gpus]\nbraked_ratio = 0.375\n[links]\ngrafana = 'https://grafana.example'\n")
    assert _observatory("render", "--into", tmp_path, "--thresholds", mine) == 0
    assert _observatory("render", "--check", "--into", tmp_path, "--thresholds", mine) == 0
    assert _observatory("render", "--check", "--into", tmp_path) == 2


def test_check_is_silent_on_what_is_fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render.write(tmp_path)
    assert _observatory("render", "--check", "--into", tmp_path) == 0
    assert capsys.readouterr() == ("", "")


def test_check_names_each_stale_file_and_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render.write(tmp_path)
    (tmp_path / render.RULES).write_text("groups: []\n")
    (tmp_path / render.METRICS_PAGE).unlink()
    assert _observatory("render", "--check", "--into", tmp_path) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{render.RULES} is out of date",
        f"{render.METRICS_PAGE} is out of date",
        "observatory: rendered files are out of date (2); `observatory dashboards render` writes them",
    ]
    assert (tmp_path / render.RULES).read_text() == "groups: []\n"
    assert not (tmp_path / render.METRICS_PAGE).exists()


def test_a_place_that_cannot_be_written_is_the_infrastructures_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dashboards").write_text("a file where a folder should be")
    assert _observatory("render", "--into", tmp_path) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("rendered files cannot be written")


def test_a_boards_mistake_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(panels.BOARDS_FOLDER, tmp_path / "boards")
    fleet = tmp_path / "boards" / "fleet.yaml"
    fleet.write_text(fleet.read_text().replace("observatory_gpu_power_watts{", "observatory_gpu_power_wats{"))
    monkeypatch.setattr(panels, "BOARDS_FOLDER", tmp_path / "boards")
    panels.read.cache_clear()
    try:
        assert _observatory("render", "--into", tmp_path) == 2
    finally:
        panels.read.cache_clear()
    assert capsys.readouterr().err.splitlines() == [
        'observatory: boards/fleet.yaml: panel "Power of all GPUs": observatory_gpu_power_wats is not a metric; did you'
        " mean observatory_gpu_power_watts? (docs/metrics.md lists all)"
    ]
    assert not (tmp_path / render.RENDERED).exists()


def test_thresholds_of_a_user_are_those_of_panels_and_alerts_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text("[host]\nfilling_ratio = 0.25\n")
    assert _observatory("render", "--into", tmp_path, "--thresholds", tmp_path / "mine.toml") == 0
    assert "with less than 25% of free space" in (tmp_path / render.RENDERED / "fleet.json").read_text()
    assert "< 0.25" in (tmp_path / render.RENDERED / "fleet.json").read_text()
    assert "< 0.25" in (tmp_path / render.RULES).read_text()


def test_push_sends_what_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    with serve(FakeGrafana()) as server:
        assert _observatory("push", "--url", server.url) == 0
    assert len(server.dashboards) == len(read_rendered())
