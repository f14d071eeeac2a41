"""Twelve ways in which a Grafana, or what stands in its place, answers a push: each ends in order, or in one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.cli import main
from dashboards.board import DATA_SOURCE_UID
from dashboards.publishing.publish import read_rendered
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serve

TITLE = read_rendered()[0]["title"]
LACKING = frozenset({"health", "search", "versions"})
"""What a proxy before a Grafana may not let through, and a push does without."""
ANNOTATIONS = {"list": [{"builtIn": 1, "name": "Annotations & Alerts"}]}


@pytest.fixture
def grafana(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGrafana]:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve(FakeGrafana(lacks=LACKING)) as server:
        yield server


def _push(grafana: FakeGrafana, *more: str) -> int:
    return main.run(["dashboards", "push", "--url", grafana.url, *more])


# It is done.


def test_a_grafana_that_lacks_what_is_not_needed_is_pushed_to(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    for change in ("created", "unchanged"):
        assert _push(grafana) == 0
        assert {line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()} == {change}


@pytest.mark.parametrize("lacks", [LACKING, frozenset()])
def test_what_a_server_makes_of_a_dashboard_when_it_saves_it_is_no_change(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str], lacks: frozenset[str]
) -> None:
    grafana.lacks = lacks
    grafana.additions = {"annotations": ANNOTATIONS}
    assert _push(grafana) == 0
    capsys.readouterr()
    grafana.requests.clear()
    assert _push(grafana) == 0
    assert {line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()} == {"unchanged"}
    assert grafana.changes == []


def test_a_person_who_saves_what_a_server_made_otherwise_is_noticed(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.additions = {"annotations": ANNOTATIONS}
    assert _push(grafana) == 0
    grafana.save_by_hand(read_rendered()[0]["uid"], title="Mine")
    assert _push(grafana) == 2
    assert f'dashboard "{TITLE}" has no history that shows who saved it' in capsys.readouterr().err


def test_a_provisioned_data_source_keeps_its_address(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    grafana.data_sources[DATA_SOURCE_UID] = {
        "uid": DATA_SOURCE_UID,
        "name": "Parallel Observatory",
        "type": "prometheus",
        "url": "http://other:9090",
        "readOnly": True,
    }
    assert _push(grafana) == 0
    assert 'data source "Parallel Observatory": unchanged' in capsys.readouterr().out
    assert _push(grafana, "--prometheus", "http://two:9090") == 2
    assert "is provisioned from a file of that Grafana, and differs" in capsys.readouterr().err


# It is not done, and one line says why.


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"broken": (401, b'{"message": "Invalid API key Bearer glsa_not-to-be-seen-anywhere"}')},
            "status 401: Invalid API key Bearer ...; the token in GRAFANA_TOKEN is not valid there",
            id="401",
        ),
        pytest.param(
            {"broken": (500, b'{"message": "boom Bearer glsa_not-to-be-seen-anywhere"}')},
            "status 500: boom Bearer ...",
            id="500",
        ),
        pytest.param(
            {"broken": (200, b"<html>login</html>")}, "the answer is not Grafana's JSON; is this a Grafana?", id="html"
        ),
        pytest.param(
            {"broken": (302, b""), "location": "http://127.0.0.1:19398/login"},
            "it redirects to http://127.0.0.1:19398/login; that is a login page, which accepts no token: is"
            " GRAFANA_TOKEN a service account's of this Grafana, and --url the Grafana's own address",
            id="302",
        ),
        pytest.param(
            {"broken": (404, b"404 page not found")},
            "status 404: 404 page not found; is this a Grafana, and does its address need a path?",
            id="404",
        ),
        pytest.param(
            {"may_write": False},
            'folder "Parallel Observatory": POST {url}/api/folders: status 403: Permission denied; the token\'s',
            id="403",
        ),
        pytest.param(
            {
                "data_sources": {"hidden": {"uid": "hidden", "name": "Parallel Observatory"}},
                "lacks": LACKING | {"name"},
            },
            'data source "Parallel Observatory": POST {url}/api/datasources: status 409: data source with the same name'
            " already exists; something else there has that name",
            id="409",
        ),
        pytest.param(
            {"is_provisioned": True},
            f'dashboard "{TITLE}": POST {{url}}/api/dashboards/db: status 400: Cannot save provisioned dashboard; it is'
            " provisioned from a file of that Grafana, which no push changes: put the rendered file there, or take it"
            " out of the provisioning and push again, which continues from here",
            id="provisioned",
        ),
    ],
)
def test_what_a_push_ends_with_is_one_line_that_names_it_and_what_to_do(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], told: str
) -> None:
    for name, value in changes.items():
        setattr(grafana, name, value)
    assert _push(grafana) == 4
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert told.format(url=grafana.url) in line
    assert f"http://127.0.0.1:{grafana.port}/api/" in line
    assert TOKEN not in said.out + said.err


def test_what_somebody_changed_between_reading_and_writing_is_one_line(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _push(grafana) == 0
    grafana.lacks = frozenset({"health"})
    grafana.save_older(read_rendered()[0]["uid"], title="Older")
    grafana.version_changes = 1
    capsys.readouterr()
    assert _push(grafana) == 4
    assert f'dashboard "{TITLE}": POST {grafana.url}/api/dashboards/db: status 412: ' in capsys.readouterr().err


def test_a_data_source_that_is_named_and_not_there_is_no_matter_of_others(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _push(grafana, "--data-source", "nope") == 2
    said = capsys.readouterr().err
    assert 'data source "nope" does not exist; name the UID of one that does' in said
    assert "others" not in said
