"""A push touches no dashboard of others: its UIDs have a prefix, our tag is checked, and ours under old UIDs are moved.

All of it by either API of dashboards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bench.cli import main
from dashboards.board import TAG
from dashboards.publishing.plan import FOLDER_UID
from dashboards.publishing.publish import read_rendered
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serve

RENDERED = {dashboard["uid"]: dashboard for dashboard in read_rendered()}
UID = "observatory-fleet"
OLD_UID = "fleet"
TITLE = RENDERED[UID]["title"]


@pytest.fixture(params=["first API", "newer API"])
def grafana(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGrafana]:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    is_newer = request.param == "newer API"
    lacks = frozenset({"dashboards"}) if is_newer else frozenset()
    with serve(FakeGrafana(has_newer_api=is_newer, lacks=lacks)) as server:
        yield server


def _push(grafana: FakeGrafana, *more: str) -> int:
    return main.run(["dashboards", "push", "--url", grafana.url, *more])


def _there(grafana: FakeGrafana, uid: str, document: dict[str, Any] | None = None) -> None:
    """Have a dashboard there that a person made, or this one."""
    grafana.folders.setdefault(FOLDER_UID, {"uid": FOLDER_UID, "title": "Parallel Observatory"})
    grafana.dashboard_folders[uid] = FOLDER_UID
    grafana.save_anew(uid, {"title": "Ships", "tags": ["sea"], **(document or {}), "uid": uid})


def _ours(grafana: FakeGrafana, uid: str) -> None:
    """Have a dashboard of ours there, as an older release pushed it."""
    _there(grafana, uid, {**RENDERED[UID], "refresh": "1m", "observatoryPush": {"sent": "0", "version": 1}})


def test_each_uid_has_the_prefix_and_is_one_that_grafana_takes() -> None:
    assert all(uid.startswith("observatory-") and len(uid) <= 40 for uid in RENDERED)


def test_links_lead_to_pages_that_are_there() -> None:
    text = json.dumps(list(RENDERED.values()))
    led = {part.partition("?")[0] for part in text.split('"/d/')[1:]}
    assert led
    assert led <= RENDERED.keys()


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "forced"])
def test_a_dashboard_of_others_under_our_old_uid_stays_as_it_is(grafana: FakeGrafana, force: list[str]) -> None:
    _there(grafana, OLD_UID)
    theirs = dict(grafana.dashboards[OLD_UID])
    assert _push(grafana, *force) == 0
    assert grafana.dashboards[OLD_UID] == theirs
    assert grafana.dashboards[UID]["title"] == TITLE


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "forced"])
def test_a_dashboard_of_others_under_our_uid_is_refused_even_with_force(
    grafana: FakeGrafana, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _there(grafana, UID)
    grafana.requests.clear()
    assert _push(grafana, *force) == 2
    assert f'dashboard "{TITLE}": the dashboard "Ships" has its UID {UID} and lacks the tag "{TAG}"' in (
        capsys.readouterr().err
    )
    assert grafana.changes == []


def test_a_dashboard_of_ours_under_its_old_uid_is_moved_and_stays_in_its_folder(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    _ours(grafana, OLD_UID)
    grafana.dashboard_folders[OLD_UID] = "attic"
    grafana.folders["attic"] = {"uid": "attic", "title": "Attic"}
    assert _push(grafana) == 0
    assert f'dashboard "{TITLE}", in folder "' in (said := capsys.readouterr().out)
    assert "moved to its new UID" in said
    assert OLD_UID not in grafana.dashboards
    assert grafana.dashboard_folders[UID] == "attic"
    assert _push(grafana) == 0
    assert {line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()} == {"unchanged"}


def test_what_a_person_changed_in_ours_under_its_old_uid_is_refused_until_forced(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    _ours(grafana, OLD_UID)
    grafana.save_by_hand(OLD_UID, title="Mine")
    grafana.requests.clear()
    assert _push(grafana) == 2
    assert f'dashboard "{TITLE}"' in capsys.readouterr().err
    assert grafana.changes == []
    assert _push(grafana, "--force") == 0
    assert OLD_UID not in grafana.dashboards
    assert grafana.dashboards[UID]["title"] == TITLE


def test_a_dry_run_moves_nothing(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    _ours(grafana, OLD_UID)
    grafana.requests.clear()
    assert _push(grafana, "--dry-run") == 0
    assert f'dashboard "{TITLE}": would be moved to its new UID' in capsys.readouterr().out
    assert grafana.changes == []


def test_what_a_person_saves_is_noticed_and_overwritten_on_demand(grafana: FakeGrafana) -> None:
    assert _push(grafana) == 0
    grafana.save_by_hand(UID, title="Mine")
    assert _push(grafana) == 2
    assert grafana.dashboards[UID]["title"] == "Mine"
    assert _push(grafana, "--force") == 0
    assert grafana.dashboards[UID]["title"] == TITLE


def test_where_both_apis_answer_the_first_is_taken(grafana: FakeGrafana) -> None:
    if not grafana.has_newer_api:
        grafana.has_newer_api = True
        assert _push(grafana) == 0
        assert not [request for request in grafana.requests if "/apis/" in request]
    else:
        assert _push(grafana) == 0
        assert not [request for request in grafana.changes if "/api/dashboards" in request]


def test_a_provisioned_dashboard_is_not_written(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    _ours(grafana, UID)
    grafana.metas[UID] = (
        {"grafana.app/managedBy": "classic-file-provisioning", "grafana.app/sourcePath": "fleet.json"}
        if grafana.has_newer_api
        else {"provisioned": True, "provisionedExternalId": "fleet.json"}
    )
    assert _push(grafana, "--force") == 2
    assert f'dashboard "{TITLE}" is provisioned from "fleet.json" of that Grafana, and differs' in (
        capsys.readouterr().err
    )
