"""A push goes where it is told, shows beforehand what it would do, and undoes nothing that others did."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from dashboards.board import DATA_SOURCE_UID
from dashboards.publishing.plan import FOLDER_UID
from dashboards.publishing.publish import read_rendered
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serve

UIDS = [dashboard["uid"] for dashboard in read_rendered()]
UID = UIDS[0]
TITLE = read_rendered()[0]["title"]
SOURCE = {"uid": "prom", "name": "Our Prometheus", "type": "prometheus", "url": "http://prom:9090", "version": 1}


@contextmanager
def _serving(grafana: FakeGrafana) -> Iterator[FakeGrafana]:
    with pytest.MonkeyPatch.context() as patch, serve(grafana) as server:
        patch.setenv("GRAFANA_TOKEN", TOKEN)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with _serving(FakeGrafana()) as server:
        yield server


def _after_a_push(*more: str) -> bytes:
    """A Grafana that a push has been to, whose requests are not counted: each test gets its own copy."""
    with _serving(FakeGrafana()) as grafana:
        assert _push(grafana, *more) == 0
    grafana.requests.clear()
    return pickle.dumps(grafana)


@pytest.fixture(scope="module")
def after_a_push() -> bytes:
    return _after_a_push()


@pytest.fixture
def pushed(after_a_push: bytes) -> Iterator[FakeGrafana]:
    with _serving(pickle.loads(after_a_push)) as server:
        yield server


def _push(grafana: FakeGrafana, *more: str) -> int:
    return main.run(["dashboards", "push", "--url", grafana.url, *more])


def _refused(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """Why nothing was pushed, a line for each reason."""
    assert _push(grafana, *more) == 2
    assert grafana.changes == []
    *lines, last = capsys.readouterr().err.splitlines()
    reasons = [line for line in lines if not line.startswith("left to Prometheus")]
    assert f"nothing was pushed; each line above says why, and what to do ({len(reasons)})" in last
    return reasons


def _source_of(dashboard: dict[str, Any]) -> dict[str, Any]:
    """What is chosen in the data source variable."""
    (variable,) = (one for one in dashboard["templating"]["list"] if one["type"] == "datasource")
    current: dict[str, Any] = variable["current"]
    return current


# The folder.


def test_a_folder_of_our_title_that_others_made_is_refused_and_its_uid_named(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.folders["by-hand"] = {"uid": "by-hand", "title": "Parallel Observatory"}
    (reason,) = _refused(grafana, capsys)
    assert reason == 'folder "Parallel Observatory" is somebody else\'s; --folder by-hand uses it anyway'


@pytest.mark.parametrize("named", ["by-hand", "Team A"])
def test_a_folder_of_others_is_used_where_it_is_named(grafana: FakeGrafana, named: str) -> None:
    grafana.folders["by-hand"] = {"uid": "by-hand", "title": "Team A"}
    assert _push(grafana, "--folder", named) == 0
    assert set(grafana.dashboard_folders.values()) == {"by-hand"}
    assert list(grafana.folders) == ["by-hand"]


def test_a_folder_that_is_not_there_is_made_once(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert _push(grafana, "--folder", "Team & B") == 0
    assert capsys.readouterr().out.count("created") == 2 + len(UIDS)
    ((uid, folder),) = grafana.folders.items()
    assert (folder["title"], set(grafana.dashboard_folders.values())) == ("Team & B", {uid})


def test_of_two_folders_of_a_title_none_is_guessed(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    for uid in ("one", "two"):
        grafana.folders[uid] = {"uid": uid, "title": "Team"}
    (reason,) = _refused(grafana, capsys, "--folder", "Team")
    assert reason == 'folder "Team": there are 2 folders of that name; use --folder with one of one, two'


def test_a_folder_that_the_token_may_not_save_in_is_told_before_anything_is_written(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.folders["closed"] = {"uid": "closed", "title": "Closed", "canSave": False}
    (reason,) = _refused(grafana, capsys, "--folder", "closed")
    assert reason.startswith('folder "Closed": this token may not save there')


# The data source.


def _settings(grafana: FakeGrafana) -> dict[str, Any]:
    """Our data source's address and settings, without the mark of a push."""
    source = grafana.data_sources[DATA_SOURCE_UID]
    return {"url": source["url"], **{key: text for key, text in source["jsonData"].items() if key != "observatoryPush"}}


def test_the_scrape_interval_is_the_data_sources(grafana: FakeGrafana) -> None:
    assert _push(grafana, "--scrape-interval", "15s") == 0
    assert _settings(grafana) == {"url": "http://localhost:9090", "timeInterval": "15s"}


def test_a_new_scrape_interval_leaves_what_else_is_set_there(pushed: FakeGrafana) -> None:
    pushed.data_sources[DATA_SOURCE_UID]["jsonData"]["httpMethod"] = "POST"
    assert _push(pushed, "--scrape-interval", "30s") == 0
    assert _settings(pushed) == {"url": "http://localhost:9090", "timeInterval": "30s", "httpMethod": "POST"}


def test_a_plain_push_leaves_the_data_source_as_an_earlier_one_set_it(grafana: FakeGrafana) -> None:
    assert _push(grafana, "--prometheus", "http://prometheus.mon:9090", "--scrape-interval", "15s") == 0
    grafana.requests.clear()
    assert _push(grafana) == 0
    assert grafana.changes == []
    assert _settings(grafana) == {"url": "http://prometheus.mon:9090", "timeInterval": "15s"}


def test_what_an_earlier_push_set_in_the_data_source_is_changed_where_that_is_named(grafana: FakeGrafana) -> None:
    assert _push(grafana, "--prometheus", "http://one:9090") == 0
    assert _push(grafana, "--prometheus", "http://two:9090") == 0
    assert _push(grafana, "--prometheus", "http://three:9090", "--scrape-interval", "1m") == 0
    assert _settings(grafana) == {"url": "http://three:9090", "timeInterval": "1m"}


def test_what_a_person_changed_in_the_data_source_is_refused_with_the_difference_without_force(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.data_sources[DATA_SOURCE_UID]["url"] = "http://theirs:9090"
    assert _push(pushed) == 0
    (reason,) = _refused(pushed, capsys, "--prometheus", "http://two:9090")
    assert reason == (
        'data source "Parallel Observatory" was changed by somebody since the last push, or has no mark of one (-'
        ' "url": "http://theirs:9090", + "url": "http://two:9090"); look at it there, then push with --force to'
        " overwrite it, or without what differs"
    )
    assert _push(pushed, "--prometheus", "http://two:9090", "--force") == 0
    assert _push(pushed, "--prometheus", "http://three:9090") == 0
    assert _settings(pushed) == {"url": "http://three:9090"}


def test_a_data_source_that_was_renamed_keeps_its_name_and_is_chosen_by_it(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.data_sources[DATA_SOURCE_UID]["name"] = "Theirs"
    assert _push(pushed) == 0
    assert 'data source "Theirs": unchanged' in capsys.readouterr().out
    assert _source_of(pushed.dashboards[UID]) == {"selected": True, "text": "Theirs", "value": DATA_SOURCE_UID}


def test_the_data_source_is_chosen_in_each_dashboard(pushed: FakeGrafana) -> None:
    wanted = {"selected": True, "text": "Parallel Observatory", "value": DATA_SOURCE_UID}
    assert [_source_of(pushed.dashboards[uid]) for uid in UIDS] == [wanted] * len(UIDS)


def test_a_data_source_that_is_named_is_chosen_and_left_as_it_is(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.data_sources["prom"] = dict(SOURCE)
    assert _push(grafana, "--data-source", "prom") == 0
    assert 'data source "Our Prometheus": taken as it is' in capsys.readouterr().out
    assert grafana.data_sources == {"prom": SOURCE}
    assert _source_of(grafana.dashboards[UID])["value"] == "prom"


@pytest.mark.parametrize(
    ("uid", "told"),
    [
        ("missing", 'data source "missing" does not exist; name the UID of one that does'),
        ("loki", 'data source "Logs" has the type "loki"; name a Prometheus'),
    ],
)
def test_a_data_source_that_is_none_or_no_prometheus_is_refused(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str], uid: str, told: str
) -> None:
    grafana.data_sources["loki"] = {"uid": "loki", "name": "Logs", "type": "loki"}
    assert _refused(grafana, capsys, "--data-source", uid) == [told]


@pytest.mark.parametrize("more", [(), ("--data-source", DATA_SOURCE_UID)])
def test_an_editors_token_is_enough_where_the_data_source_exists(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    pushed.is_editors = True
    pushed.save_older(UID, title="Older")
    assert _push(pushed, *more) == 0
    assert capsys.readouterr().out.splitlines()[1] == 'data source "Parallel Observatory": taken as it is'
    assert pushed.dashboards[UID]["title"] == TITLE


def test_an_editors_token_is_not_enough_for_what_it_is_told_to_change(pushed: FakeGrafana) -> None:
    pushed.is_editors = True
    assert _push(pushed, "--prometheus", "http://elsewhere:9090") == 4
    assert pushed.changes == []


def test_an_editor_without_a_data_source_is_told_what_to_do(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.is_editors = True
    assert _push(grafana) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "status 403" in line
    assert line.endswith(
        "and Admin for the data source and for alerts; with --data-source an Editor takes one that exists"
    )
    assert grafana.changes == []


def test_a_provisioned_data_source_that_differs_is_told_with_what_to_do(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.data_sources[DATA_SOURCE_UID] |= {"readOnly": True}
    pushed.data_sources[DATA_SOURCE_UID] |= {"url": "http://other:9090"}
    assert _push(pushed) == 0
    capsys.readouterr()
    (reason,) = _refused(pushed, capsys, "--prometheus", "http://two:9090", "--force")
    assert 'provisioned from a file of that Grafana, and differs (- "url": "http://other:9090", + "url": "h' in reason
    assert "change it in that file, leave out --prometheus and --scrape-interval, or take it as it is with" in reason


def test_a_data_source_of_our_name_that_others_made_is_refused_and_its_uid_named(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.data_sources["prom"] = {**SOURCE, "name": "Parallel Observatory"}
    (reason,) = _refused(grafana, capsys)
    assert reason == 'data source "Parallel Observatory" is somebody else\'s; --data-source prom takes it as it is'
    assert _push(grafana, "--data-source", "prom") == 0


# What others saved.


@pytest.mark.parametrize("is_paged", [True, False])
def test_what_a_person_saved_since_the_last_push_is_refused_and_named(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str], is_paged: bool
) -> None:
    pushed.is_paged = is_paged
    pushed.save_by_hand(UID, title="Mine", message="my \x1b[31m panels")
    pushed.save_by_hand(UIDS[1], title="Mine, too")
    first, second = _refused(pushed, capsys)
    assert first == (
        f'dashboard "{TITLE}" was saved by "ann" on 2026-11-23 as version 2 ("my \\u001b[31m panels"), and by no push'
        " since; look at it there, then push with --force to overwrite it"
    )
    assert 'was saved by "ann" on 2026-11-23 as version 2, and by no push' in second


def test_force_overwrites_what_a_person_saved(pushed: FakeGrafana) -> None:
    pushed.save_by_hand(UID, title="Mine")
    assert _push(pushed, "--force") == 0
    assert (pushed.dashboards[UID]["title"], pushed.dashboards[UID]["version"]) == (TITLE, 3)
    assert _push(pushed) == 0


def test_a_person_who_saved_what_we_would_send_is_no_obstacle(pushed: FakeGrafana) -> None:
    pushed.save_by_hand(UID, note="a key that only this person needs")
    assert _push(pushed) == 0
    assert pushed.changes == []


def test_a_dashboard_without_a_history_is_not_overwritten(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.save_older(UID, title="Whose?")
    pushed.versions[UID] = []
    (reason,) = _refused(pushed, capsys)
    assert "has no history that shows who saved it; look at it there, then push with --force" in reason


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_a_provisioned_dashboard_that_differs_is_told_with_what_to_do(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    pushed.metas[UID] = {"provisioned": True, "provisionedExternalId": "speed.json"}
    assert _push(pushed) == 0
    pushed.save_older(UID, title="Older")
    (reason,) = _refused(pushed, capsys, *more)
    assert f'dashboard "{TITLE}" is provisioned from "speed.json" of that Grafana, and differs; put the' in reason


def test_keys_that_a_server_adds_are_no_change(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    grafana.additions = {"weekStart": "", "style": "dark", "snapshot": {"expires": ""}}
    assert not any(grafana.additions.keys() & dashboard.keys() for dashboard in read_rendered())
    assert _push(grafana) == 0
    grafana.requests.clear()
    assert _push(grafana) == 0
    assert grafana.changes == []


# A dry run.


def test_a_dry_run_of_an_empty_grafana_writes_nothing_and_names_all(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _push(grafana, "--dry-run", "--alerts") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.rpartition(": ")[2] for line in lines} == {"would be created"}
    assert len(lines) > 2 + len(UIDS)
    assert grafana.changes == []


def test_a_dry_run_shows_what_would_change_and_writes_nothing(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.save_older(UID, title="Older")
    assert _push(pushed, "--dry-run", "--prometheus", "http://elsewhere") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        'folder "Parallel Observatory": unchanged',
        'data source "Parallel Observatory": would be updated',
    ]
    assert {'  - "url": "http://localhost:9090"', '  + "url": "http://elsewhere"'} <= {
        line.rstrip(",") for line in lines
    }
    assert {'  - "title": "Older",', f'  + "title": "{TITLE}",'} <= set(lines)
    assert pushed.changes == []


def test_a_dry_run_tells_what_a_push_would_refuse(pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    pushed.save_by_hand(UID, title="Mine")
    assert _push(pushed, "--dry-run") == 2
    said = capsys.readouterr()
    assert f'dashboard "{TITLE}": would be updated' in said.out
    assert "was saved by" in said.err
    assert pushed.changes == []


# What was moved.


def test_a_dashboard_that_was_moved_stays_and_is_updated_where_it_is(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.folders["attic"] = {"uid": "attic", "title": "Attic"}
    pushed.dashboard_folders[UID] = "attic"
    assert _push(pushed) == 0
    assert f'dashboard "{TITLE}", in folder "attic": unchanged' in capsys.readouterr().out
    pushed.save_older(UID, title="Older")
    assert _push(pushed) == 0
    assert f'dashboard "{TITLE}", in folder "attic": updated' in capsys.readouterr().out
    assert (pushed.dashboards[UID]["title"], pushed.dashboard_folders[UID]) == (TITLE, "attic")


def test_a_folder_that_is_named_moves_what_lies_elsewhere_with_force_alone(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = _refused(pushed, capsys, "--folder", "Team")
    assert reasons[0] == (
        f'dashboard "{TITLE}" lies in folder "{FOLDER_UID}"; leave out --folder to update it there, or push with'
        " --force to move it"
    )
    assert len(reasons) == len(UIDS)
    assert _push(pushed, "--folder", "Team", "--dry-run", "--force") == 0
    assert f'  -folder "{FOLDER_UID}"' in capsys.readouterr().out.splitlines()
    assert _push(pushed, "--folder", "Team", "--force") == 0
    (team,) = (uid for uid, folder in pushed.folders.items() if folder["title"] == "Team")
    assert set(pushed.dashboard_folders.values()) == {team}
    assert _push(pushed, "--folder", "Team") == 0


def test_no_folder_is_made_that_nothing_would_be_in(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    assert _push(grafana, "--folder", "Team") == 0
    capsys.readouterr()
    assert _push(grafana) == 0
    assert [folder["title"] for folder in grafana.folders.values()] == ["Team"]
    assert {line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()} == {"unchanged"}


# Alerts.


def test_alerts_are_pushed_where_asked_for_and_then_unchanged(
    pushed: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pushed.rules == {}
    assert _push(pushed, "--alerts") == 0
    said = capsys.readouterr()
    assert 'alert "GpuLost": created' in said.out
    assert "left to Prometheus, which records the series that they need: RegressionConfirmed, " in said.err
    rule = pushed.rules["observatory-gpu-lost"]
    assert (rule["folderUID"], rule["data"][0]["datasourceUid"]) == (FOLDER_UID, DATA_SOURCE_UID)
    pushed.requests.clear()
    assert _push(pushed, "--alerts") == 0
    assert pushed.changes == []


GPU_LOST = "observatory-gpu-lost"


@pytest.fixture(scope="module")
def after_a_push_of_alerts() -> bytes:
    return _after_a_push("--alerts")


@pytest.fixture
def alerted(after_a_push_of_alerts: bytes) -> Iterator[FakeGrafana]:
    """One that alerts were pushed to, and that adds keys to their queries, as the real one does."""
    with _serving(pickle.loads(after_a_push_of_alerts)) as server:
        for rule in server.rules.values():
            for query in rule["data"]:
                query["model"] |= {"intervalMs": 1000, "maxDataPoints": 43200}
        yield server


def test_an_alert_whose_threshold_was_changed_here_is_updated(alerted: FakeGrafana, tmp_path: Path) -> None:
    before = alerted.rules["observatory-node-collector-stale"]["data"][0]["model"]["expr"]
    (tmp_path / "thresholds.toml").write_text("[agents]\nold_seconds = 121\n")
    assert _push(alerted, "--alerts", "--thresholds", str(tmp_path / "thresholds.toml")) == 0
    assert alerted.changes == ["PUT /api/v1/provisioning/alert-rules/observatory-node-collector-stale"]
    assert alerted.rules["observatory-node-collector-stale"]["data"][0]["model"]["expr"] != before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"for": "1h"}, '(- "for": "1h", + "for": "'),
        ({"folderUID": "attic"}, '(- "folderUID": "attic", + "folderUID": "parallel-observatory")'),
    ],
)
def test_an_alert_that_somebody_changed_there_is_refused_with_the_difference_without_force(
    alerted: FakeGrafana, capsys: pytest.CaptureFixture[str], changes: dict[str, str], told: str
) -> None:
    alerted.rules[GPU_LOST] |= changes
    (reason,) = _refused(alerted, capsys, "--alerts")
    assert reason.startswith('alert "GpuLost" was changed by somebody since the last push, or has no mark of one (')
    assert told in reason
    assert _push(alerted, "--alerts", "--force") == 0
    assert alerted.changes == [f"PUT /api/v1/provisioning/alert-rules/{GPU_LOST}"]
    assert changes.items().isdisjoint(alerted.rules[GPU_LOST].items())


def test_an_alert_that_a_file_provisions_is_told(alerted: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    alerted.rules[GPU_LOST] |= {"for": "1h", "provenance": "file"}
    assert _push(alerted, "--alerts", "--force") == 2
    assert 'alert "GpuLost" is provisioned from a file of that Grafana, and differs' in capsys.readouterr().err
    assert alerted.changes == []


# Which Grafana it is.


@pytest.mark.parametrize("version", ["9.0.0", "12.1.0-pre", ""])
def test_a_grafana_of_nine_or_later_or_of_a_hidden_version_is_pushed_to(grafana: FakeGrafana, version: str) -> None:
    grafana.version = version
    assert _push(grafana) == 0


def test_a_grafana_that_is_too_old_is_told_before_anything_is_written(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.version = "8.5.27"
    assert _push(grafana) == 4
    assert "Grafana 8.5.27 is too old; a push needs 9 or later" in capsys.readouterr().err
    assert grafana.changes == []


def test_a_token_that_may_only_read_is_told_at_the_first_thing_that_it_may_not_write(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.may_write = False
    assert _push(grafana) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        f'folder "Parallel Observatory": POST {grafana.url}/api/folders: status 403: Permission denied; the token'
        in line
    )
    assert (grafana.folders, len(grafana.changes)) == ({}, 1)
