"""Who is told of which alert, and which alert goes before others, by a real Alertmanager with the shipped file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import msgspec
import pytest

from tests.dashboards.alert_links import ALERTS
from tests.stack.alerts.alertmanager import (
    SHIPPED,
    AlertmanagerServer,
    run_alertmanager,
    run_webhook,
    shipped_config,
    wait_until_sent,
)
from tests.support.servers import free_port, program

pytestmark = pytest.mark.stack

NODE = {"job": "observatory", "instance": "node1:9464"}
GPU = {**NODE, "gpu": "3"}
FIGURE = {"suite": "nightly", "case": "ddp", "ranks": "8", "hardware": "8 x H100", "series": "ddp-1", "figure": "step"}


@pytest.fixture
def alertmanager() -> Iterator[AlertmanagerServer]:
    """With nobody to tell."""
    with run_alertmanager(shipped_config("http://127.0.0.1:9")) as server:
        yield server


def _labels(name: str, labels: dict[str, str]) -> dict[str, str]:
    """What an alert of our rules carries."""
    alert = ALERTS[name]
    return {"alertname": name, **msgspec.structs.asdict(alert.labels), **labels}


def _told(alertmanager: AlertmanagerServer, *alerts: dict[str, str]) -> tuple[list[str], list[str]]:
    """The names of the alerts that people are told of when all of these fire, and of those that are held back."""
    alertmanager.add(*alerts)
    return alertmanager.names("--active"), alertmanager.names("--inhibited")


def test_the_shipped_file_is_one_that_alertmanager_takes() -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    ended = subprocess.run([amtool, "check-config", SHIPPED], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "7 inhibit rules" in ended.stdout


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "criticals"), ("warning", "warnings")])
def test_each_severity_of_ours_has_its_receiver(severity: str, receiver: str) -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    for name, alert in ALERTS.items():
        if alert.labels.severity == severity:
            words = (f"--config.file={SHIPPED}", f"alertname={name}", f"severity={severity}")
            ended = subprocess.run(
                [amtool, "config", "routes", "test", *words], capture_output=True, text=True, timeout=60, check=True
            )
            assert ended.stdout.strip() == receiver


def test_one_lost_gpu_is_told_once(alertmanager: AlertmanagerServer) -> None:
    others = [
        {"alertname": name, "severity": "warning", "component": component, **GPU}
        for name, component in (("GpuXid", "gpu"), ("GpuNeedsReset", "gpu"), ("NvlinkErrors", "link"))
    ]
    told, held = _told(alertmanager, _labels("GpuLost", GPU), *others)
    assert told == ["GpuLost"]
    assert held == ["GpuNeedsReset", "GpuXid", "NvlinkErrors"]


def test_another_gpu_of_the_node_is_told_beside_a_lost_one(alertmanager: AlertmanagerServer) -> None:
    told, held = _told(alertmanager, _labels("GpuLost", GPU), _labels("GpuHeldBack", {**NODE, "gpu": "4"}))
    assert (told, held) == (["GpuHeldBack", "GpuLost"], [])


def test_a_fault_of_one_cluster_holds_back_nothing_of_another(alertmanager: AlertmanagerServer) -> None:
    west, east = {"cluster": "west"}, {"cluster": "east"}
    told, held = _told(
        alertmanager,
        _labels("GpuLost", {**GPU, **west}),
        _labels("GpuHeldBack", {**GPU, **east}),
        _labels("SuiteNotRun", {"suite": "nightly", **west}),
        _labels("RegressionConfirmed", {**FIGURE, **east}),
        _labels("RegressionConfirmed", {**FIGURE, **west}),
    )
    assert told == ["GpuHeldBack", "GpuLost", "RegressionConfirmed", "SuiteNotRun"]
    assert held == ["RegressionConfirmed"]


def test_a_node_that_is_gone_goes_before_what_its_agent_said(alertmanager: AlertmanagerServer) -> None:
    told, held = _told(
        alertmanager,
        _labels("NodeAgentGone", NODE),
        _labels("NodeCollectorStale", NODE),
        _labels("GpuLate", GPU),
        _labels("GpuLate", {**GPU, "instance": "node2:9464"}),
    )
    assert (told, held) == (["GpuLate", "NodeAgentGone"], ["GpuLate", "NodeCollectorStale"])


def test_of_one_case_a_longer_step_is_told_once(alertmanager: AlertmanagerServer) -> None:
    others = [{**FIGURE, "figure": figure} for figure in ("mean step", "efficiency weak", "peak memory")]
    confirmed = [_labels("RegressionConfirmed", one) for one in (FIGURE, *others)]
    elsewhere = _labels("RegressionConfirmed", {**FIGURE, "case": "fsdp", "figure": "mean step"})
    alertmanager.add(*confirmed, elsewhere)
    assert alertmanager.names("--inhibited") == ["RegressionConfirmed"] * 2
    assert alertmanager.names("--active") == ["RegressionConfirmed"] * 3  # Step and memory of the one, and the other.


def test_what_is_critical_hides_no_warning_of_something_else(alertmanager: AlertmanagerServer) -> None:
    told, held = _told(
        alertmanager,
        _labels("RegressionConfirmed", FIGURE),
        _labels("LevelCrept", {**FIGURE, "figure": "peak memory"}),
        _labels("HostDiskFull", {**NODE, "folder": "/runs"}),
        _labels("HostDiskFilling", {**NODE, "folder": "/runs"}),
        _labels("HostDiskFilling", {**NODE, "folder": "/"}),
        _labels("HostClockOff", NODE),
        _labels("InfinibandPortDown", {**NODE, "device": "mlx5_0", "port": "1"}),
        _labels("InfinibandErrors", {**NODE, "device": "mlx5_0", "port": "1"}),
        _labels("InfinibandErrors", {**NODE, "device": "mlx5_7", "port": "1"}),
    )
    assert held == ["HostDiskFilling", "InfinibandErrors"]
    assert len(told) == 7


def test_a_suite_that_did_not_run_goes_before_its_old_regressions(alertmanager: AlertmanagerServer) -> None:
    told, held = _told(
        alertmanager,
        _labels("SuiteNotRun", {"suite": "nightly"}),
        _labels("RegressionConfirmed", FIGURE),
        _labels("RegressionConfirmed", {**FIGURE, "suite": "weekly"}),
    )
    assert (told, held) == (["RegressionConfirmed", "SuiteNotRun"], ["RegressionConfirmed"])


def test_the_gates_word_goes_before_the_rule_on_nights_and_no_warning_before_what_is_critical(
    alertmanager: AlertmanagerServer,
) -> None:
    result = {"strategy": "ddp", "ranks": "8", "scaling": "weak"}
    for series, gate in (("ddp-1", "RegressionFound"), ("ddp-2", "RegressionConfirmed")):
        own = {**result, "series": series}
        alertmanager.add(
            _labels(gate, {**FIGURE, "figure": "efficiency weak", "case": series, "series": series}),
            _labels("ScalingEfficiencyLow", own),
            _labels("ScalingEfficiencyCritical", own),
        )
    assert alertmanager.names("--inhibited", "series=ddp-1") == ["ScalingEfficiencyLow"]
    assert alertmanager.names("--inhibited", "series=ddp-2") == ["ScalingEfficiencyCritical", "ScalingEfficiencyLow"]


def test_figures_of_one_night_are_one_message() -> None:
    with run_webhook() as webhook, run_alertmanager(shipped_config(webhook.url)) as alertmanager:
        alertmanager.add(
            *(
                _labels("RegressionFound", {**FIGURE, "figure": figure})
                for figure in ("step", "mean step", "efficiency")
            )
        )
        wait_until_sent(webhook, "/warnings", ["RegressionFound"])
        first = webhook.sent[0][1]
        # amtool adds them one after another, and the group waits for a second only.
        assert first["groupLabels"] == {"component": "result", "suite": "nightly"}


def test_a_webhook_that_is_down_is_told_when_it_is_back() -> None:
    port = free_port()
    with run_alertmanager(shipped_config(f"http://127.0.0.1:{port}")) as alertmanager:
        alertmanager.add(_labels("RegressionConfirmed", FIGURE))
        with run_webhook(port) as webhook:
            wait_until_sent(webhook, "/criticals", ["RegressionConfirmed"])
            (alert,) = webhook.alerts("/criticals")[:1]
            assert alert["labels"]["case"] == "ddp"
