"""A push brings a Grafana to what is rendered, once, and says in one line why it could not."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bench.cli import main
from dashboards.board import DATA_SOURCE_UID
from dashboards.publishing.answers import PublishFailed
from dashboards.publishing.plan import FOLDER_UID, Wanted
from dashboards.publishing.publish import Address, parse_address, publish, read_rendered
from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serve


def _chosen(dashboard: dict[str, Any]) -> dict[str, Any]:
    """The dashboard as it is sent: with our data source chosen."""
    first, *others = dashboard["templating"]["list"]
    current = {"selected": True, "text": "Parallel Observatory", "value": DATA_SOURCE_UID}
    return {**dashboard, "templating": {"list": [{**first, "current": current}, *others]}}


def _unmarked(dashboard: dict[str, Any]) -> dict[str, Any]:
    """The dashboard without the mark of a push."""
    return {key: value for key, value in dashboard.items() if key != "observatoryPush"}


ALL = {dashboard["uid"]: _chosen(dashboard) for dashboard in read_rendered()}
UID = next(iter(ALL))
RENDERED = ALL[UID]


@pytest.fixture
def grafana(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGrafana]:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve(FakeGrafana()) as server:
        yield server


def _push(url: str, *more: str) -> int:
    return main.run(["dashboards", "push", "--url", url, *more])


def _refused(url: str, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a push fails with."""
    assert _push(url) == code
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    (line,) = said.err.splitlines()
    return line


def test_a_push_makes_folder_data_source_and_dashboard(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _push(grafana.url, "--prometheus", "http://prometheus:9090") == 0
    assert capsys.readouterr().out.splitlines() == [
        'folder "Parallel Observatory": created',
        'data source "Parallel Observatory": created',
        *(f'dashboard "{dashboard["title"]}": created' for dashboard in ALL.values()),
    ]
    assert list(grafana.folders) == [FOLDER_UID]
    source = grafana.data_sources[DATA_SOURCE_UID]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert {uid: _unmarked(dashboard) for uid, dashboard in grafana.dashboards.items()} == {
        uid: {**dashboard, "id": number, "version": 1} for number, (uid, dashboard) in enumerate(ALL.items(), start=1)
    }
    assert grafana.dashboard_folders == dict.fromkeys(ALL, FOLDER_UID)


def test_a_second_push_changes_nothing(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    assert _push(grafana.url) == 0
    capsys.readouterr()
    grafana.requests.clear()
    assert _push(grafana.url) == 0
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()] == ["unchanged"] * (2 + len(ALL))
    assert grafana.changes == []


@pytest.mark.parametrize("is_marked", [True, False])
def test_what_an_older_push_left_is_brought_up_to_date(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    older = [{**dashboard, "title": "Older"} if dashboard["uid"] == UID else dashboard for dashboard in read_rendered()]
    with monkeypatch.context() as patch:
        patch.setattr("dashboards.publishing.publish.read_rendered", lambda: older)
        assert _push(grafana.url) == 0
    if not is_marked:
        grafana.save_older(UID)
    capsys.readouterr()
    assert _push(grafana.url) == 0
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "unchanged",
        "unchanged",
        "updated",
        *["unchanged"] * (len(ALL) - 1),
    ]
    number = 2 if is_marked else 3
    assert _unmarked(grafana.dashboards[UID]) == {**RENDERED, "id": 1, "version": number}
    assert (len(grafana.folders), len(grafana.data_sources), len(grafana.dashboards)) == (1, 1, len(ALL))


def test_a_renamed_folder_keeps_its_name(grafana: FakeGrafana) -> None:
    assert _push(grafana.url) == 0
    grafana.folders[FOLDER_UID]["title"] = "Training"
    assert _push(grafana.url) == 0
    assert grafana.folders[FOLDER_UID]["title"] == "Training"


def test_a_grafana_under_a_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    with serve(FakeGrafana(prefix="/grafana")) as server:
        assert _push(f"{server.url}/") == 0
    assert list(server.dashboards) == list(ALL)


def test_a_change_made_meanwhile_is_not_overwritten(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    assert _push(grafana.url) == 0
    grafana.save_older(UID, title="Mine")
    grafana.version_changes = 1
    line = _refused(grafana.url, 4, capsys)
    assert "status 412: The dashboard has been changed by someone else; somebody changed it" in line
    assert grafana.dashboards[UID]["title"] == "Mine"


def test_a_wrong_token_is_told_without_it(
    grafana: FakeGrafana, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "glsa_another-secret"
    monkeypatch.setenv("GRAFANA_TOKEN", wrong)
    line = _refused(grafana.url, 4, capsys)
    assert "status 401: Invalid API key; the token in GRAFANA_TOKEN is not valid there" in line
    assert wrong not in line


def test_a_server_that_echoes_the_token_does_not_get_it_printed(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.broken = 500, json.dumps({"message": f"no such user: {TOKEN}"}).encode()
    assert "status 500: no such user: ..." in _refused(grafana.url, 4, capsys)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>hello</html>", "the answer is not Grafana's JSON; is this a Grafana?"),
        (204, b"", "the answer is not Grafana's JSON; is this a Grafana?"),
        (200, b"[]", "/api/health: the answer is not from a Grafana; is this a Grafana?"),
        (404, b"nothing here", "status 404: nothing here; is this a Grafana"),
        (502, b"no message from upstream", "the answer is not Grafana's JSON; is this a Grafana?"),
        (500, b'{"message": "database is locked"}', "status 500: database is locked"),
        (403, b'{"message": "no permission"}', "status 403: no permission; the token's account"),
        (200, b"{}", "/api/folders/parallel-observatory: the answer has no uid in it; is this a Grafana?"),
    ],
)
def test_what_is_no_answer_of_a_grafana_is_one_line(
    status: int, body: bytes, told: str, grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.broken = status, body
    assert told in _refused(grafana.url, 4, capsys)


def test_nobody_there_is_one_line(grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = _refused(f"http://127.0.0.1:{port}", 4, capsys)
    assert line.endswith(
        f"GET http://127.0.0.1:{port}/api/health: no answer (connection refused); is it running there?"
    )


def test_an_address_that_sends_on_is_told_and_not_followed(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.broken = 301, b""
    grafana.location = "https://elsewhere/api/health"
    line = _refused(grafana.url, 4, capsys)
    assert "it redirects to https://elsewhere/api/health; push to that address" in line
    assert len(grafana.requests) == 1


@pytest.mark.parametrize("token", ["two\nlines", "gls\u00e4"])
def test_a_token_that_can_be_none_is_misuse(
    token: str, grafana: FakeGrafana, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", token)
    assert "GRAFANA_TOKEN holds a character that no token has" in _refused(grafana.url, 2, capsys)


@pytest.mark.parametrize("token", [None, "", "  "])
def test_a_missing_token_is_misuse_before_anything_is_asked(
    token: str | None, grafana: FakeGrafana, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN")
    if token is not None:
        monkeypatch.setenv("GRAFANA_TOKEN", token)
    assert "GRAFANA_TOKEN is not set" in _refused(grafana.url, 2, capsys)
    assert grafana.requests == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:3000", "it looks like http://host:3000"),
        ("ftp://host", "it looks like http://host:3000"),
        ("http://", "it looks like http://host:3000"),
        ("http://host:port", "cannot be read"),
        ("http://host/?orgId=1", "it looks like http://host:3000"),
    ],
)
def test_an_address_that_is_none_is_misuse(
    url: str, told: str, grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in _refused(url, 2, capsys)


def test_a_password_in_the_address_is_refused_and_not_repeated(
    grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _refused("http://admin:hunter2@host:3000", 2, capsys)
    assert "has a user name" in line
    assert "hunter2" not in line


def test_an_address_is_taken_apart() -> None:
    assert parse_address("https://[::1]:8443/a/b/") == Address(protocol="https", host="[::1]", port=8443, prefix="a/b/")
    assert parse_address("http://host") == Address(protocol="http", host="host", port=None, prefix="")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("not a url", 'the Prometheus\'s address is "not a url"; it looks like http://host:9090'),
        ("localhost:9090", "it looks like http://host:9090"),
        ("http://host:99999", "Port out of range"),
        ("http://a..b", "has no valid host name"),
        (f"http://{'a' * 64}", "has no valid host name"),
        ("ftp://me:hunter2@host", 'address is "ftp://host"'),
    ],
)
def test_a_prometheus_that_is_none_is_refused_before_anything_is_asked(
    url: str, told: str, grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _push(grafana.url, "--prometheus", url) == 2
    assert told in capsys.readouterr().err
    assert grafana.requests == []


def test_a_grafana_that_drips_is_left_when_its_time_is_over(grafana: FakeGrafana) -> None:
    grafana.drip_s = 0.05
    grafana.broken = 200, b"x" * 1000
    wanted = Wanted(dashboards=[], prometheus_url="http://prometheus:9090")
    with pytest.raises(PublishFailed, match=r"GET .*: no complete answer within 0\.3 s; is it, or"):
        list(publish(parse_address(grafana.url), TOKEN, wanted, request_s=0.3))
