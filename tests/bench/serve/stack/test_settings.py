"""The stack's settings, and the files that its servers read."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import bcrypt
import msgspec
import pytest
import yaml

from bench.engines.settings_file import read_settings
from bench.errors import Misuse
from bench.serve.stack.files import ALERTMANAGER, SHIPPED, files, grafana_ini
from bench.serve.stack.passwords import Passwords
from bench.serve.stack.settings import MOST_SCRAPE_S, PrometheusSettings, StackSettings, check, looks_back_days
from dashboards.board import DATA_SOURCE_UID
from dashboards.publishing.plan import FOLDER_UID
from dashboards.publishing.publish import RENDERED
from tests.dashboards.promtool import promtool

USUAL = StackSettings()
PASSWORDS = Passwords(prometheus="p-1", alertmanager="a-2", grafana="g-3")


def test_the_shipped_file_says_all_settings_at_their_defaults() -> None:
    assert tomllib.loads((SHIPPED / "stack.toml").read_text()) == msgspec.to_builtins(USUAL)
    assert read_settings(SHIPPED / "stack.toml", StackSettings) == USUAL


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[prometheus]\nscrape_seconds = 5\n")
    found = read_settings(tmp_path / "mine.toml", StackSettings)
    assert found == StackSettings(prometheus=PrometheusSettings(scrape_seconds=5))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[prometheus]\nport = "x"',
            'prometheus.port is "x"; it may be a whole number of at least 1 and at most 65,535',
        ),
        ("[grafana]\nport = 99999", "grafana.port is 99999; it may be a whole number of at least 1 and at most 65,535"),
        ("prometheus = 3", "prometheus is 3; it may be a table"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_what_it_may_be(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(Misuse) as refused:
        read_settings(tmp_path / "mine.toml", StackSettings)
    assert str(refused.value) == f"{tmp_path / 'mine.toml'}: {told}"


def test_samples_are_kept_for_as_long_as_the_rules_look_back() -> None:
    check(StackSettings(prometheus=PrometheusSettings(retention_days=looks_back_days())), "x")
    with pytest.raises(Misuse, match="give 15 or more"):
        check(StackSettings(prometheus=PrometheusSettings(retention_days=looks_back_days() - 1)), "x")


def test_two_scrapes_are_in_the_time_that_pages_and_rules_look_back() -> None:
    assert msgspec.convert({"scrape_seconds": MOST_SCRAPE_S}, PrometheusSettings)
    with pytest.raises(msgspec.ValidationError, match="<= 120"):
        msgspec.convert({"scrape_seconds": MOST_SCRAPE_S + 1}, PrometheusSettings)
    text = "".join(path.read_text() for path in RENDERED.iterdir())
    sizes_s = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    assert (
        min(int(number) * sizes_s[unit] for number, unit in re.findall(r"\[(\d+)([smhd])\]", text)) > 2 * MOST_SCRAPE_S
    )


def test_no_rule_looks_further_back_than_the_least_retention() -> None:
    windows = re.findall(r"\[(\d+)([smhd])", (RENDERED / "rules.yaml").read_text())
    hours = {"s": 1 / 3600, "m": 1 / 60, "h": 1, "d": 24}
    longest_h = max(int(number) * hours[unit] for number, unit in windows)
    assert (looks_back_days() - 1) * 24 >= longest_h  # A day more, by which the longest one is offset.


def _written(folder: Path, settings: StackSettings, lists: tuple[Path, ...] = ()) -> None:
    for path, text in files(settings, {"demo": "127.0.0.1:9465"}, lists, PASSWORDS).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.stack
def test_prometheus_takes_its_settings_and_the_rules(tmp_path: Path) -> None:
    _written(tmp_path, StackSettings(prometheus=PrometheusSettings(scrape_seconds=1)), (tmp_path / "fleet.json",))
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.stack
@pytest.mark.parametrize("server", ["prometheus", "alertmanager"])
def test_the_servers_take_their_web_configuration(tmp_path: Path, server: str) -> None:
    _written(tmp_path, USUAL)
    checked = promtool("check", "web-config", tmp_path / f"{server}-web.yml")
    assert checked.returncode == 0, checked.stderr
    hashed = yaml.safe_load((tmp_path / f"{server}-web.yml").read_text())["basic_auth_users"]["observatory"]
    assert bcrypt.checkpw(getattr(PASSWORDS, server).encode(), hashed.encode())
    client = yaml.safe_load((tmp_path / f"{server}-client.yml").read_text())
    assert client == {"basic_auth": {"username": "observatory", "password": getattr(PASSWORDS, server)}}


def test_who_asks_another_server_has_its_password(tmp_path: Path) -> None:
    texts = files(USUAL, {}, (), PASSWORDS)
    (manager,) = yaml.safe_load(texts[Path("prometheus.yml")])["alerting"]["alertmanagers"]
    assert manager["basic_auth"] == {"username": "observatory", "password": "a-2"}
    (source,) = yaml.safe_load(texts[Path("grafana/provisioning/datasources/observatory.yaml")])["datasources"]
    assert (source["basicAuth"], source["basicAuthUser"]) == (True, "observatory")
    assert source["secureJsonData"] == {"basicAuthPassword": "p-1"}
    assert "[security]\nadmin_password = g-3\n" in grafana_ini(USUAL, tmp_path, PASSWORDS)


def test_a_scrape_may_take_no_longer_than_the_interval() -> None:
    for scrape_seconds, timeout in ((2, "2s"), (60, "10s")):
        settings = StackSettings(prometheus=PrometheusSettings(scrape_seconds=scrape_seconds))
        document = yaml.safe_load(files(settings, {}, (), PASSWORDS)[Path("prometheus.yml")])
        assert document["global"]["scrape_timeout"] == timeout


def test_alertmanager_keeps_the_shipped_routes_and_sends_nothing() -> None:
    shipped = yaml.safe_load((SHIPPED / ALERTMANAGER).read_text())
    document = yaml.safe_load(files(USUAL, {}, (), PASSWORDS)[ALERTMANAGER])
    assert document["route"] == shipped["route"]
    assert document["inhibit_rules"] == shipped["inhibit_rules"]
    assert document["receivers"] == [{"name": "warnings"}, {"name": "criticals"}]


def test_grafana_is_given_the_data_source_that_the_dashboards_ask_for() -> None:
    texts = files(USUAL, {}, (), PASSWORDS)
    (source,) = yaml.safe_load(texts[Path("grafana/provisioning/datasources/observatory.yaml")])["datasources"]
    assert source["uid"] == DATA_SOURCE_UID
    assert source["url"] == "http://127.0.0.1:9090"
    for path in RENDERED.glob("*.json"):
        (asked,) = [one for one in json.loads(path.read_text())["templating"]["list"] if one["type"] == "datasource"]
        assert asked["query"] == source["type"]
        assert asked["current"] == {"selected": True, "text": source["name"], "value": source["uid"]}


def test_grafana_takes_rates_over_what_prometheus_scrapes() -> None:
    settings = StackSettings(prometheus=PrometheusSettings(scrape_seconds=60))
    texts = files(settings, {}, (), PASSWORDS)
    (source,) = yaml.safe_load(texts[Path("grafana/provisioning/datasources/observatory.yaml")])["datasources"]
    assert source["jsonData"] == {"httpMethod": "POST", "timeInterval": "60s"}


def test_grafana_is_given_the_rendered_dashboards() -> None:
    texts = files(USUAL, {}, (), PASSWORDS)
    (provider,) = yaml.safe_load(texts[Path("grafana/provisioning/dashboards/observatory.yaml")])["providers"]
    assert provider["folderUid"] == FOLDER_UID
    assert list(Path(provider["options"]["path"]).glob("*.json"))


def test_grafana_listens_where_the_settings_say_and_tells_nobody(tmp_path: Path) -> None:
    text = grafana_ini(USUAL, tmp_path, PASSWORDS)
    assert "http_addr = 127.0.0.1\nhttp_port = 3000\n" in text
    assert f"provisioning = {tmp_path}/grafana/provisioning\n" in text
    assert "reporting_enabled = false" in text
