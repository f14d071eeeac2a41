"""A Grafana takes what is pushed and has it unchanged afterwards: a real one where --grafana-url names it.

It should be one to try things out: our folder, data source, dashboards and alerts there are overwritten, and stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from bench.cli import main
from dashboards.publishing.publish import read_rendered
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serve

UID, TITLE = read_rendered()[0]["uid"], read_rendered()[0]["title"]


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The Grafana's address, after everything was pushed to it."""
    named: str | None = request.config.getoption("--grafana-url")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if named is None:
            patch.setenv("GRAFANA_TOKEN", TOKEN)
            patch.setenv("NO_PROXY", "127.0.0.1")
            named = stack.enter_context(serve(FakeGrafana())).url
        elif not os.environ.get("GRAFANA_TOKEN"):
            pytest.fail("--grafana-url needs an Admin's token in GRAFANA_TOKEN")
        assert _push(named, "--alerts", "--force", "--scrape-interval", "15s") == 0
        yield named


def _push(url: str, *more: str) -> int:
    return main.run(["dashboards", "push", "--url", url, *more])


def _ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        f"{url.rstrip('/')}/api{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['GRAFANA_TOKEN']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_second_push_finds_everything_unchanged(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _push(url, "--alerts", "--scrape-interval", "15s") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 + len(read_rendered())
    assert {line.rpartition(": ")[2] for line in lines} == {"unchanged"}


def test_what_a_person_saved_is_refused_shown_and_overwritten_on_demand(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _ask(url, f"/dashboards/uid/{UID}")
    mine = {**found["dashboard"], "title": "Mine"}
    _ask(url, "/dashboards/db", {"dashboard": mine, "folderUid": found["meta"]["folderUid"], "message": "by hand"})
    assert _push(url) == 2
    assert f'dashboard "{TITLE}" was saved by ' in capsys.readouterr().err
    assert _push(url, "--dry-run", "--force") == 0
    assert f'  + "title": "{TITLE}"' in capsys.readouterr().out
    assert _ask(url, f"/dashboards/uid/{UID}")["dashboard"]["title"] == "Mine"
    assert _push(url, "--force") == 0
    assert _ask(url, f"/dashboards/uid/{UID}")["dashboard"]["title"] == TITLE


def test_the_data_source_has_the_scrape_interval_and_is_chosen(url: str) -> None:
    source = _ask(url, "/datasources/uid/parallel-observatory")
    assert source["jsonData"]["timeInterval"] == "15s"
    (variable,) = (
        one
        for one in _ask(url, f"/dashboards/uid/{UID}")["dashboard"]["templating"]["list"]
        if one["type"] == "datasource"
    )
    assert variable["current"]["value"] == source["uid"]
