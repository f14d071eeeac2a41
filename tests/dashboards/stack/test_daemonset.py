"""The DaemonSet runs what the command line knows, as nobody, and can write nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cli.watching.serve import command

FILE = Path(__file__).parents[3] / "dashboards" / "stack" / "daemonset.yaml"


@pytest.fixture(scope="module")
def daemonset() -> dict[str, Any]:
    (document,) = yaml.safe_load_all(FILE.read_text())
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "DaemonSet")
    found: dict[str, Any] = document
    return found


@pytest.fixture(scope="module")
def pod(daemonset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    one: dict[str, Any] = found
    return one


def test_it_selects_its_own_pods(daemonset: dict[str, Any]) -> None:
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"] == {"matchLabels": labels}


def test_it_starts_what_the_command_line_knows(container: dict[str, Any]) -> None:
    assert container["command"] == ["observatory"]
    verb, *options = container["args"]
    assert verb == "serve"
    asked = command.make_context(verb, options).params
    (port,) = container["ports"]
    assert (asked["host"], asked["port"]) == ("0.0.0.0", port["containerPort"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    (mount,) = container["volumeMounts"]
    assert asked["runs_folder"].parent == Path(mount["mountPath"])
    assert asked["store_url"].startswith(f"sqlite:///{mount['mountPath']}/")


def test_prometheus_is_told_the_port(daemonset: dict[str, Any], container: dict[str, Any]) -> None:
    annotations = daemonset["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(container["ports"][0]["containerPort"])


def test_it_is_nobody_and_can_become_nobody_else(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_it_writes_nowhere(pod: dict[str, Any], container: dict[str, Any]) -> None:
    mounts = {mount["name"]: mount["readOnly"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"]: True for volume in pod["volumes"]}


def test_it_takes_no_gpu_from_training(container: dict[str, Any]) -> None:
    asked = {name for table in container["resources"].values() for name in table}
    assert asked == {"cpu", "memory"}
