"""From a link that got slow to the message that a person gets: a real nightly, Prometheus, Alertmanager and webhook."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.store.history import History
from bench.store.summary import series_of
from dashboards.render import RULES
from tests.bench.made.real_nights import SUITE, RealNights
from tests.stack.alerts.alertmanager import run_alertmanager, run_webhook, shipped_config, wait_until_sent
from tests.support.servers import absent_server, run_prometheus

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
USUAL_LINK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
SLOW_LINK = (
    *("unshare", "--net", "sh", "-c"),
    'ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 2mbit burst 32kb latency 500ms && exec "$@"',
    "sh",
)
"""Ranks in a network of their own, whose loopback is as slow as a bad cable."""


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> RealNights:
    """After twenty usual nights, and one with a slow link, which the gate has judged."""
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode != 0:
        absent_server("networks of their own need root and unshare (apt-get install util-linux)")
    nights = RealNights(tmp_path_factory.mktemp("nights"))
    nights.make_before(faster=1.0, within=USUAL_LINK)
    tonight = nights.run_suite(within=SLOW_LINK)
    assert tonight.returncode == 0, tonight.stderr
    checked = nights.call("check", "--suite", SUITE, "--runs", str(nights.folder / "runs"))
    assert checked.returncode == 5, checked.stdout + checked.stderr
    return nights


@contextmanager
def _serving(nights: RealNights) -> Iterator[str]:
    """The exporter of results; yields its host and port."""
    command = nights.command("serve", "--results", "only", "--port", "0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=nights.folder) as served:
        assert served.stderr is not None
        try:
            yield served.stderr.readline().split()[1].split("/")[2]
        finally:
            served.send_signal(signal.SIGINT)
            served.communicate(timeout=60)
        assert served.returncode == 0


def _without_waiting(folder: Path) -> Path:
    """The rendered rules, evaluated each second, and none held back for minutes."""
    text = (ROOT / RULES).read_text()
    path = folder / "rules.yaml"
    path.write_text(re.sub(r"(for|interval): \d+m$", lambda match: f"{match[1]}: 1s", text, flags=re.MULTILINE))
    return path


@pytest.fixture(scope="module")
def told(nights: RealNights, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The alerts that the webhook was sent as warnings."""
    rules = _without_waiting(tmp_path_factory.mktemp("rules"))
    with run_webhook() as webhook, run_alertmanager(shipped_config(webhook.url)) as alertmanager:
        address = alertmanager.url.removeprefix("http://")
        with _serving(nights) as exporter, run_prometheus(exporter, rules=[rules], alertmanagers=[address]):
            wait_until_sent(webhook, "/warnings", ["RegressionFound"])
            return webhook.alerts("/warnings")


def _step(told: list[dict[str, Any]]) -> dict[str, Any]:
    return next(alert for alert in told if alert["labels"].get("figure") == "step")


def test_the_alert_is_told_by_what_it_measures_and_by_nothing_of_who_showed_it(
    told: list[dict[str, Any]], nights: RealNights
) -> None:
    with History(nights.url, writable=False) as history:
        newest = history.runs(1)[0]
    labels = _step(told)["labels"]
    assert labels == {
        "alertname": "RegressionFound",
        "severity": "warning",
        "component": "result",
        "suite": SUITE,
        "case": "ddp",
        "ranks": "2",
        "hardware": newest.hardware,
        "series": series_of(newest.case, newest.hardware),
        "figure": "step",
    }


def test_its_text_has_what_how_much_since_when_why_and_what_to_do_next(
    told: list[dict[str, Any]], nights: RealNights
) -> None:
    with History(nights.url, writable=False) as history:
        bad = next(one.run for one in history.runs(9) if not one.purpose.member or not one.purpose.member.is_rerun)
    texts = _step(told)["annotations"]
    number = r"\+[\d.]+ %"
    pattern = rf"ddp on 2 ranks: step {number} \[{number}, {number}\] since \d{{4}}-\d\d-\d\d \(suite {SUITE}\)"
    assert re.fullmatch(pattern, texts["summary"])
    commands = rf"Next: `observatory diagnose {bad}`, `observatory compare \S+-1 {bad}`"
    assert re.search(commands, texts["description"])
    assert "Likely cause: " in texts["description"]
    assert texts["runbook"] == "observatory runbook RegressionFound"
