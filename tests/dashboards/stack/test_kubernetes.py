"""The manifests of `dashboards render --as kubernetes`: valid, and about the pods that we start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cli import main
from bench.cli.watching.serve import command as serve
from dashboards import render
from dashboards.board import BOARDS
from tests.bench.engines.kubernetes.schemas import schema_of, validate
from tests.dashboards.promtool import promtool

STACK = Path(__file__).parents[3] / "dashboards" / "stack"
CRDS = {
    "ServiceMonitor": "servicemonitor_crd.yaml",
    "PodMonitor": "podmonitor_crd.yaml",
    "PrometheusRule": "prometheusrule_crd.yaml",
}
MOST_BYTES = 262_144
"""What kubectl may keep of an object beside it when it applies it; a ConfigMap itself may have four times as much."""


@pytest.fixture(scope="module")
def manifests() -> dict[str, list[dict[str, Any]]]:
    """All manifests, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(render.kubernetes_text(labels={"release": "prometheus"})):
        found.setdefault(document["kind"], []).append(document)
    return found


def _pod_template(file: str) -> dict[str, Any]:
    (document,) = yaml.safe_load_all((STACK / file).read_text())
    found: dict[str, Any] = document["spec"]["template"]
    return found


def test_each_has_what_kubernetes_needs_of_all(manifests: dict[str, list[dict[str, Any]]]) -> None:
    documents = [one for some in manifests.values() for one in some]
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names)
    apis = {one["kind"]: one["apiVersion"] for one in documents}
    assert apis == {"Service": "v1", "ConfigMap": "v1", **dict.fromkeys(CRDS, "monitoring.coreos.com/v1")}
    for one in documents:
        assert len(yaml.safe_dump(one)) < MOST_BYTES


@pytest.mark.parametrize("kind", CRDS)
def test_an_operator_takes_each_by_its_definition(kind: str, manifests: dict[str, list[dict[str, Any]]]) -> None:
    schema = schema_of(CRDS[kind])["properties"]["spec"]
    for one in manifests[kind]:
        validate(one["spec"], schema)


def test_prometheus_takes_the_rules_which_are_those_of_the_rule_file(
    manifests: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    (rule,) = manifests["PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((render.CHECKOUT / render.RULES).read_text())
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    checked = promtool("check", "rules", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stderr


def test_each_dashboard_is_a_config_map_that_grafanas_sidecar_finds(
    manifests: dict[str, list[dict[str, Any]]],
) -> None:
    maps = manifests["ConfigMap"]
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = one["data"].items()
        assert name == f"{json.loads(text)['uid'].removeprefix('observatory-')}.json"
        assert json.loads((render.CHECKOUT / render.RENDERED / name).read_text()) == json.loads(text)
    assert len(maps) == len(BOARDS)


@pytest.mark.parametrize(
    ("kind", "endpoints", "file"),
    [("PodMonitor", "podMetricsEndpoints", "daemonset.yaml"), ("Service", "ports", "results.yaml")],
)
def test_pods_that_we_start_are_found_by_their_labels_and_port(
    kind: str, endpoints: str, file: str, manifests: dict[str, list[dict[str, Any]]]
) -> None:
    (one,) = manifests[kind]
    template = _pod_template(file)
    selector = one["spec"]["selector"]
    assert (selector if kind == "Service" else selector["matchLabels"]) == template["metadata"]["labels"]
    (endpoint,) = one["spec"][endpoints]
    (port,) = template["spec"]["containers"][0]["ports"]
    assert (endpoint["targetPort"] if kind == "Service" else endpoint["port"]) == port["name"]


def test_the_service_monitor_finds_the_service(manifests: dict[str, list[dict[str, Any]]]) -> None:
    (monitor,), (service,) = manifests["ServiceMonitor"], manifests["Service"]
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_monitors_and_rules_have_the_labels_by_which_an_operator_chooses(
    manifests: dict[str, list[dict[str, Any]]],
) -> None:
    for kind, documents in manifests.items():
        for one in documents:
            assert (one["metadata"]["labels"].get("release") == "prometheus") == (kind in CRDS)


def test_scrapes_are_as_frequent_as_without_kubernetes(manifests: dict[str, list[dict[str, Any]]]) -> None:
    interval = yaml.safe_load((STACK / "prometheus.yml").read_text())["global"]["scrape_interval"]
    (pods,), (services,) = manifests["PodMonitor"], manifests["ServiceMonitor"]
    assert pods["spec"]["podMetricsEndpoints"][0]["interval"] == interval
    assert services["spec"]["endpoints"][0]["interval"] == interval


def test_the_results_are_served_by_what_the_command_line_knows() -> None:
    spec = _pod_template("results.yaml")["spec"]
    (container,) = spec["containers"]
    verb, *options = container["args"]
    asked = serve.make_context(verb, options).params
    assert (verb, asked["results"], asked["port"]) == ("serve", "only", container["ports"][0]["containerPort"])
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_the_command_prints_what_kubectl_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["dashboards", "render", "--as", "kubernetes", "--label", "release=prometheus"]) == 0
    assert capsys.readouterr().out == render.kubernetes_text(labels={"release": "prometheus"})


def test_pods_service_and_monitors_are_made_in_one_namespace(manifests: dict[str, list[dict[str, Any]]]) -> None:
    """Each finds pods of its own namespace alone, so that none may name one, and all commands must name the same."""
    documents = [one for some in manifests.values() for one in some]
    documents += [yaml.safe_load((STACK / file).read_text()) for file in ("daemonset.yaml", "results.yaml")]
    assert all("namespace" not in one["metadata"] for one in documents)
    monitors = [*manifests["ServiceMonitor"], *manifests["PodMonitor"]]
    assert all("namespaceSelector" not in one["spec"] for one in monitors)
    texts = [
        STACK.parents[1] / "docs" / "monitoring" / "publishing.md",
        STACK / "daemonset.yaml",
        STACK / "results.yaml",
    ]
    lines = [line for path in texts for line in path.read_text().splitlines() if "kubectl apply" in line]
    assert len(lines) == 4
    assert all("--namespace monitoring" in line for line in lines)
    (of_dashboards,) = [line for line in lines if "dashboards render" in line]
    assert "--server-side" in of_dashboards
