"""Manifests by which a Prometheus operator and a Grafana in a cluster find our exporters, rules and dashboards.

Checked by promtool and, where available, against the CustomResourceDefinitions; never run on a cluster.
Not covered: the exporters themselves, which stack/daemonset.yaml and stack/results.yaml start.
Source: Prometheus operator, API reference of monitoring.coreos.com/v1; Grafana's Helm chart, sidecar for dashboards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]

_API = "monitoring.coreos.com/v1"
_NAME = "app.kubernetes.io/name"
_COMPONENT = "app.kubernetes.io/component"
_APPLICATION = "parallel-observatory"
_PORT = "metrics"
"""Name of the port in the exporters' pods."""
_RESULTS = "observatory-results"
_SIDECAR = {"grafana_dashboard": "1"}
"""Label by which the sidecar of Grafana's chart finds a dashboard; the annotation below names its folder."""
_FOLDER = {"grafana_folder": "Parallel Observatory"}


def manifests(
    rules: Mapping[str, Any], dashboards: Mapping[str, str], labels: Mapping[str, str], *, scrape_seconds: int
) -> list[Manifest]:
    """Return the manifests in the order in which they must be created.

    rules: the document of Prometheus's rule file. dashboards: JSON by name. labels: further labels of monitors and
    rules, by which operators choose what they read.
    """
    return [
        _manifest("v1", "Service", _RESULTS, _of("results"))
        | {
            "spec": {
                "clusterIP": "None",
                "selector": _of("results"),
                "ports": [{"name": _PORT, "port": 9464, "targetPort": _PORT}],
            }
        },
        _manifest(_API, "ServiceMonitor", _RESULTS, {**_of("results"), **labels})
        | {
            "spec": {
                "jobLabel": _NAME,
                "selector": {"matchLabels": _of("results")},
                "endpoints": [_endpoint("service_name", scrape_seconds)],
            }
        },
        _manifest(_API, "PodMonitor", "observatory-agents", {**_of("agent"), **labels})
        | {
            "spec": {
                "jobLabel": _NAME,
                "selector": {"matchLabels": _of("agent")},
                "podMetricsEndpoints": [_endpoint("pod_node_name", scrape_seconds)],
            }
        },
        _manifest(_API, "PrometheusRule", "observatory-rules", {**_of("rules"), **labels}) | {"spec": dict(rules)},
        # JSON without spaces: `kubectl apply` keeps each manifest in an annotation of at most 256 KiB.
        *(
            {**_manifest("v1", "ConfigMap", f"observatory-{name}", {**_of("dashboard"), **_SIDECAR}, _FOLDER)}
            | {"data": {f"{name}.json": json.dumps(json.loads(text), separators=(",", ":"))}}
            for name, text in dashboards.items()
        ),
    ]


def _of(component: str) -> dict[str, str]:
    return {_NAME: _APPLICATION, _COMPONENT: component}


def _manifest(
    api: str, kind: str, name: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Manifest:
    more = {} if annotations is None else {"annotations": dict(annotations)}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": dict(labels), **more}}


def _endpoint(instance: str, scrape_seconds: int) -> dict[str, Any]:
    """Return how a port is scraped. instance: the part of Kubernetes's metadata that becomes the label `instance`."""
    return {
        "port": _PORT,
        "path": "/metrics",
        "interval": f"{scrape_seconds}s",
        "relabelings": [
            {"sourceLabels": [f"__meta_kubernetes_{instance}"], "targetLabel": "instance"},
            # A restarted pod has another name, which would start new series.
            {"action": "labeldrop", "regex": "pod|container|endpoint"},
        ],
    }
