"""Long-term stores: the sections remote_write are Prometheus's, and a real VictoriaMetrics gets what is ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.serve.stack.files import SHIPPED
from collectors.metrics.agent import RUN_INFO
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.registry import SHOWN
from collectors.prometheus.exposition import Exporter, Owned
from collectors.prometheus.http_server import Server, pages
from dashboards.publishing.publish import RENDERED, read_rendered
from tests.dashboards import grafana_lint
from tests.dashboards.promtool import promtool
from tests.support.grafana_expressions import metric_names
from tests.support.servers import free_port, program, started_server

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]
OTHER = Metric(name="other_info", kind="info", unit="info", scope="node", help="Somebody else's.")
SECTIONS = sorted((SHIPPED / "remote-write").glob("*.yml"))


def _section(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    assert found.keys() == {"global", "remote_write"}
    return found


@pytest.mark.parametrize("path", SECTIONS, ids=lambda path: path.stem)
def test_prometheus_takes_each_section(path: Path, tmp_path: Path) -> None:
    document = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    section = _section(path)
    document["global"] |= section.pop("global")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({**document, **section}))
    shutil.copy(RENDERED / "rules.yaml", tmp_path / "observatory-rules.yaml")
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("path", SECTIONS, ids=lambda path: path.stem)
def test_a_section_keeps_all_that_a_page_or_an_alert_asks_for(path: Path) -> None:
    asked = {name for page in read_rendered() for text in _expressions(page) for name in metric_names(text)}
    rules = [one for group in yaml.safe_load((RENDERED / "rules.yaml").read_text())["groups"] for one in group["rules"]]
    asked |= {name for rule in rules for name in metric_names(rule["expr"])}
    asked |= {rule["record"] for rule in rules if "record" in rule}
    shown = {metric.name for metric in SHOWN} | {"ALERTS", "ALERTS_FOR_STATE", "up"}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in asked if not name.startswith("series:")} <= shown
    (write,) = _section(path)["remote_write"]
    (relabelling,) = write["write_relabel_configs"]
    assert [name for name in asked if not re.fullmatch(relabelling["regex"], name)] == []
    assert re.fullmatch(relabelling["regex"], "node_cpu_seconds_total") is None


def _expressions(page: dict[str, Any]) -> list[str]:
    """What a page asks for: its panels, and its marks."""
    marks = [one["expr"] for one in page["annotations"]["list"] if "expr" in one]
    return [*grafana_lint.expressions(page), *marks]


@contextmanager
def _victoria_metrics(folder: Path) -> Iterator[str]:
    """The address of a VictoriaMetrics, which is gone afterwards; the test skips where none is installed."""
    binary = shutil.which("victoria-metrics")
    if binary is None:
        pytest.skip("VictoriaMetrics is not installed (Debian 12: apt-get install victoria-metrics)")
    port = free_port()
    words = (f"-storageDataPath={folder}", f"-httpListenAddr=127.0.0.1:{port}")
    with subprocess.Popen((binary, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _names(store: str) -> set[str]:
    """The names of the series that the store has of the cluster."""
    query = urllib.parse.urlencode({"match[]": '{job="observatory", cluster="my-cluster"}'})
    try:
        with urllib.request.urlopen(f"{store}/api/v1/series?{query}", timeout=10) as answer:
            return {one["__name__"] for one in json.load(answer)["data"]}
    except OSError:  # Not there yet.
        return set()


def test_victoriametrics_gets_our_series_and_no_others(tmp_path: Path) -> None:
    def shown() -> Iterator[Owned]:
        yield RUN_INFO.at(1, **dict.fromkeys(RUN_INFO.labels, "x")), {}
        yield Sample(OTHER.name, 1), {}

    section = _section(SHIPPED / "remote-write" / "victoriametrics.yml")
    (write,) = section["remote_write"]
    server = Server(pages(Exporter((RUN_INFO, OTHER), (shown,), on_notice=print)), "127.0.0.1", 0, on_notice=print)
    try:
        with _victoria_metrics(tmp_path / "store") as store:
            config = {
                "global": section["global"],
                "scrape_configs": [
                    {
                        "job_name": "observatory",
                        "scrape_interval": "1s",
                        "scrape_timeout": "1s",
                        "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
                    }
                ],
                "remote_write": [{**write, "url": f"{store}{urllib.parse.urlsplit(write['url']).path}"}],
            }
            (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML.
            words = (f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}")
            with started_server(program("prometheus", "prometheus"), *words, output=tmp_path / "output"):
                until_s = time.monotonic() + 60
                while not (names := _names(store)) and time.monotonic() < until_s:
                    time.sleep(0.2)
    finally:
        server.close()
    assert RUN_INFO.name in names
    assert names <= {RUN_INFO.name, "up"}
