"""What starts the nightly suite: valid units, manifests and configurations, whose commands the command line knows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.suite.file import read_suite
from bench.suite.form.document import find_suite
from tests.bench.engines.kubernetes.schemas import schema_of, validate
from tests.dashboards.promtool import promtool
from tests.dashboards.stack.command_lines import calls_in, parse, shell_blocks
from tests.support.servers import absent_server

ROOT = Path(__file__).parents[3]
STACK = ROOT / "dashboards" / "stack"
PAGE = ROOT / "docs" / "guides" / "nightly.md"
ENDS = "check=$?; exit $((code ? code : check))"
NIGHTLY = (
    *("observatory-nightly.service", "nightly.scrontab", "nightly-cronjob.yaml", "nightly-actions.yaml"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_places_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OBSERVATORY_RUNS", "OBSERVATORY_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("file", NIGHTLY)
def test_each_runs_the_suite_within_a_budget_and_then_judges_it(file: str) -> None:
    run, check = (parse(words) for words in calls_in((STACK / file).read_text()))
    assert (run.info_name, check.info_name) == ("run", "check")
    assert run.params["suite_name"] == check.params["suite"] == "nightly"
    assert run.params["resumed"] is None  # Each night is a run of its own.
    suite = read_suite(find_suite("nightly"))
    assert suite.period_s is not None
    assert 0 < run.params["budget_s"] < suite.period_s / 2
    assert run.params["store_url"] == check.params["store_url"]


def test_systemd_finds_no_fault_with_the_timer_and_its_service(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        absent_server("systemd is not installed")
    for name in ("observatory-nightly.service", "observatory-nightly.timer"):
        text = (STACK / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/parallel-observatory/bin/observatory", "/bin/true"))
    units = [str(tmp_path / f"observatory-nightly.{kind}") for kind in ("service", "timer")]
    verified = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")


def _setting(file: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (STACK / file).read_text(), re.MULTILINE)


def test_the_service_writes_where_the_node_is_watched() -> None:
    for name in ("User", "Group", "StateDirectory", "StateDirectoryMode", "UMask"):
        assert _setting("observatory-nightly.service", name) == _setting("observatory.service", name) != []
    run, check = (parse(words).params for words in calls_in((STACK / "observatory-nightly.service").read_text()))
    (serve,) = (parse(words).params for words in calls_in((STACK / "observatory.service").read_text()))
    assert run["runs_folder"] == serve["runs_folder"]
    assert run["store_url"] == check["store_url"] == serve["store_url"]


def test_the_scrontab_asks_for_the_nodes_that_the_suite_takes() -> None:
    text = (STACK / "nightly.scrontab").read_text()
    (when,) = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert re.match(r"\d+ \d+ \* \* \* ", when)
    (nodes,) = re.findall(r"^#SCRON --nodes=(\d+)$", text, re.MULTILINE)
    run = parse(calls_in(text)[0]).params
    assert (run["engine_name"], run["nodes"]) == ("slurm", int(nodes))
    assert when.endswith(f"; {ENDS}")


def _cron_job() -> dict[str, Any]:
    (document,) = yaml.safe_load_all((STACK / "nightly-cronjob.yaml").read_text())
    found: dict[str, Any] = document
    return found


def test_the_cron_jobs_pod_is_valid() -> None:
    """A CronJob's template is that of a Job, of which JobSet's schema has a copy."""
    spec = schema_of("jobset_crd_v0.12.0.yaml")["properties"]["spec"]["properties"]
    template = spec["replicatedJobs"]["items"]["properties"]["template"]
    document = _cron_job()
    assert (document["apiVersion"], document["kind"]) == ("batch/v1", "CronJob")
    validate(document["spec"]["jobTemplate"], template)


def test_the_cron_job_runs_as_nobody_and_ends_as_suite_and_gate_did() -> None:
    pod = _cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    lines = container["command"][2].splitlines()
    assert (lines[1], "; ".join(lines[-2:])) == ("code=$?", ENDS)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    places = {one["name"]: one["value"] for one in container["env"]}
    assert Path(places["OBSERVATORY_RUNS"]).parent == Path("/var/lib/parallel-observatory")
    assert {"/var/lib/parallel-observatory", "/dev/shm", "/tmp"} == mounted


def test_the_action_runs_by_the_clock_and_judges_the_night_however_it_ended() -> None:
    document = yaml.safe_load((STACK / "nightly-actions.yaml").read_text())
    triggers = document[True]  # YAML 1.1 reads `on` so.
    assert triggers["schedule"] == [{"cron": "0 2 * * *"}]
    (job,) = document["jobs"].values()
    run, check = job["steps"]
    assert "if" not in run
    assert check["if"] == "always()"


def test_prometheus_takes_its_configuration_and_the_rules(tmp_path: Path) -> None:
    shutil.copy(STACK / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "dashboards" / "rendered" / "rules.yaml", tmp_path / "observatory-rules.yaml")
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr


def test_alertmanager_has_a_receiver_for_each_severity() -> None:
    document = yaml.safe_load((STACK / "alertmanager" / "alertmanager.yml").read_text())
    receivers = {one["name"] for one in document["receivers"]}
    route = document["route"]
    assert {route["receiver"], *(one["receiver"] for one in route["routes"])} == receivers
    rules = yaml.safe_load((ROOT / "dashboards" / "rendered" / "rules.yaml").read_text())
    severities = {rule["labels"]["severity"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    matched = {found for one in route["routes"] for text in one["matchers"] for found in re.findall(r'"(\w+)"', text)}
    assert matched | {"warning"} == severities


# The page


def test_the_page_has_eleven_steps() -> None:
    assert re.findall(r"^## (\d+)\. ", PAGE.read_text(), re.MULTILINE) == [str(number) for number in range(1, 12)]


@pytest.mark.parametrize(
    ("suite", "check", "code"),
    [(0, 0, 0), (3, 0, 3), (3, 5, 3), (0, 5, 5)],
    ids=["fine", "failed", "both", "regression"],
)
def test_a_shell_ends_with_the_suites_code_or_else_the_gates(suite: int, check: int, code: int) -> None:
    words = f"(exit {suite}); code=$?; (exit {check}); {ENDS}"
    assert subprocess.run(["sh", "-c", words], check=False, timeout=60).returncode == code


@pytest.mark.parametrize(
    "words",
    # The folder that `render` names must exist; tests/project/pages/test_nightly_blocks.py runs it.
    [words for words in calls_in(shell_blocks(PAGE.read_text())) if words[:2] != ["dashboards", "render"]],
    ids=" ".join,
)
def test_each_command_of_the_page_is_one_of_the_command_line(words: list[str]) -> None:
    parse(words)


def test_each_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"dashboards/[\w./-]+\w", PAGE.read_text()))
    assert named >= {f"dashboards/stack/{name}" for name in ("observatory.service", "prometheus.yml", *NIGHTLY)}
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_drill_of_the_page_is_one_of_the_suite() -> None:
    drills = [parse(words) for words in calls_in(shell_blocks(PAGE.read_text())) if "--set" in words]
    assert drills
    for drill in drills:
        read_suite(find_suite(drill.params["suite_name"]), drill.params["settings"])
