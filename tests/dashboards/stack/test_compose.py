"""The containers of compose.yaml: valid, with the same words and ports as the programs, and files that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bench.serve.stack import compose
from bench.serve.stack.files import LOOPBACK, SHIPPED
from bench.serve.stack.lifecycle import FEATURES
from bench.serve.stack.settings import StackSettings

SCHEMA = Path("/usr/lib/python3/dist-packages/compose/config/compose_spec.json")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
USUAL = StackSettings()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The file as docker reads it by hand, without a variable set."""
    found: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(lambda one: one[2], compose.FILE.read_text()))
    return found


def test_it_is_valid_by_the_schema_of_compose(document: dict[str, Any]) -> None:
    if not SCHEMA.is_file():
        pytest.skip(f"{SCHEMA} is not there (apt-get install docker-compose)")
    schema = json.loads(SCHEMA.read_text())
    # The schema of that package is older than a project's name in its file.
    schema["properties"].setdefault("name", {"type": "string"})
    jsonschema.Draft7Validator(schema).validate(document)


def test_each_variable_is_set_by_the_command_and_has_the_defaults_of_the_settings(tmp_path: Path) -> None:
    found = dict(_VARIABLE.findall(compose.FILE.read_text()))
    lines = dict(line.split("=", 1) for line in compose.environment(USUAL, tmp_path).splitlines())
    assert found.keys() == lines.keys()
    numbers = {name: value for name, value in lines.items() if value.isdecimal()}
    assert numbers == {name: found[name] for name in numbers}
    assert len(numbers) == 4


def test_prometheus_is_started_as_the_program_is(document: dict[str, Any]) -> None:
    words = document["services"]["prometheus"]["command"]
    assert f"--storage.tsdb.retention.time={USUAL.prometheus.retention_days}d" in words
    assert f"--enable-feature={FEATURES}" in words


def test_all_listen_on_the_loopback_address_alone(document: dict[str, Any]) -> None:
    services = document["services"]
    assert {service["network_mode"] for service in services.values()} == {"host"}
    for name, port in (("prometheus", USUAL.prometheus.port), ("alertmanager", USUAL.alertmanager.port)):
        assert f"--web.listen-address={LOOPBACK}:{port}" in services[name]["command"]
    grafana = services["grafana"]["environment"]
    assert (grafana["GF_SERVER_HTTP_ADDR"], grafana["GF_SERVER_HTTP_PORT"]) == (LOOPBACK, USUAL.grafana.port)


def test_what_is_mounted_is_there_or_a_volume(document: dict[str, Any]) -> None:
    sources = [mount.split(":")[0] for service in document["services"].values() for mount in service["volumes"]]
    absent = {source for source in sources if source not in document["volumes"] and not (SHIPPED / source).exists()}
    assert absent == {"./targets"}  # Docker makes it; `serve --targets` fills it.


def test_images_are_of_one_release(document: dict[str, Any]) -> None:
    for service in document["services"].values():
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])


def test_grafana_finds_the_dashboards_where_the_provisioning_says(document: dict[str, Any]) -> None:
    mounted = dict(mount.split(":")[:2] for mount in document["services"]["grafana"]["volumes"])
    assert mounted["../rendered"] == str(compose.DASHBOARDS_WITHIN)
    provider = yaml.safe_load((SHIPPED / "grafana/provisioning/dashboards/observatory.yaml").read_text())
    assert provider["providers"][0]["options"]["path"] == str(compose.DASHBOARDS_WITHIN)
