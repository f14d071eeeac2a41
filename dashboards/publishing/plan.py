"""Plans a push: finds by reading which folder, data source, dashboards and alerts a Grafana lacks.

Refuses to undo others' work before anything is written, and names all such objects at once. The mark of the last push
(publishing/marks.py) shows whether somebody has changed an object since. For a dashboard without a mark, as from older
releases, Grafana's history of versions shows it: each push leaves a message there, and a person's save another message
or none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

from dashboards.board import DATA_SOURCE_NAME, DATA_SOURCE_UID, DATA_SOURCE_VARIABLE, TAG
from dashboards.panels import UID_PREFIX
from dashboards.publishing import marks
from dashboards.publishing.answers import Ask, NotThere, PublishFailed, PushRefused, find
from dashboards.publishing.boards import Board, Boards, Request, boards_of
from dashboards.publishing.difference import covers, difference
from dashboards.publishing.managed_alerts import managed_alerts
from dashboards.rules import Group
from dashboards.thresholds import Thresholds

FOLDER_UID, FOLDER_TITLE = "parallel-observatory", "Parallel Observatory"
DEFAULT_PROMETHEUS = "http://localhost:9090"
MESSAGE = "observatory dashboards push"
"""Message of each version that a push saves, the same in older releases."""
OLDEST_GRAFANA = 9

_MOST_CHANGES = 4
_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")

Change = Literal["created", "updated", "moved to its new UID", "unchanged", "taken as it is"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The goal of a push.

    prometheus_url: Prometheus's address as Grafana reaches it. scrape_interval: that Prometheus's, for example `15s`.
    None keeps the data source's value.
    folder: UID or title; None means our own folder. data_source: UID of an existing data source, which is not changed;
    None means our own.
    alerts: groups of alerts for Grafana to evaluate, and their thresholds; None leaves them to Prometheus.
    is_forced: overwrite what a person has changed.
    """

    dashboards: Sequence[dict[str, Any]]
    prometheus_url: str | None = None
    scrape_interval: str | None = None
    folder: str | None = None
    data_source: str | None = None
    alerts: tuple[tuple[Group, ...], Thresholds] | None = None
    is_forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a push does with one object. difference: lines, if it is updated. request: writes it.

    lies_in: UID of a dashboard's folder. cleaning: a request to send after writing, for example to delete an older
    dashboard.
    """

    what: str
    change: Change
    difference: tuple[str, ...] = ()
    request: Request | None = None
    lies_in: str | None = None
    cleaning: Request | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps in order. refusals: others' changes that the steps would undo, each with the next step."""

    steps: tuple[Step, ...]
    refusals: tuple[str, ...]

    def check(self) -> None:
        """Raise `PushRefused` if the plan would undo others' changes."""
        if self.refusals:
            raise PushRefused(list(self.refusals))


def plan(ask: Ask, wanted: Wanted) -> Plan:
    """Read what the Grafana has, without changing anything, and return what a push would do.

    Raises:
        PublishFailed: it cannot be reached, is too old, or gave no valid answer.
    """
    _check_version(ask)
    refusals: list[str] = []
    folder, folder_uid = _folder(ask, wanted.folder, refusals)
    source, source_uid, source_name = _data_source(ask, wanted, refusals)
    steps = [folder, source]
    boards = boards_of(ask) if wanted.dashboards else None
    for dashboard in wanted.dashboards:
        assert boards is not None, "there are dashboards"
        pointed = _pointed_at(dashboard, source_uid, source_name)
        steps.append(_dashboard(ask, boards, pointed, folder_uid, wanted, refusals))
    if wanted.alerts is not None:
        groups, thresholds = wanted.alerts
        rules = managed_alerts(groups, thresholds.links, folder_uid=folder_uid, data_source_uid=source_uid)
        steps += [_alert(ask, rule, refusals, is_forced=wanted.is_forced) for rule in rules]
    elif not any(step.lies_in == folder_uid for step in steps):
        steps = [step for step in steps if step is not folder or step.request is None]  # It would be empty.
    return Plan(steps=tuple(steps), refusals=tuple(refusals))


def _check_version(ask: Ask) -> None:
    """Refuse a Grafana that reports a too old version. Grafana may hide its version, and a proxy its health."""
    try:
        answer = ask("GET", "/health")
    except NotThere:
        return
    if not isinstance(answer, dict):
        raise PublishFailed(f"GET {ask.url}/health: the answer is not from a Grafana; is this a Grafana?")
    version = str(answer.get("version", ""))
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < OLDEST_GRAFANA:
        raise PublishFailed(f"{ask.url}: Grafana {version} is too old; a push needs {OLDEST_GRAFANA} or later")


# The folder.


def _folder(ask: Ask, named: str | None, refusals: list[str]) -> tuple[Step, str]:
    """Return the step for the folder, and its UID. Another owner's folder is used only if the user named it."""
    title = FOLDER_TITLE if named is None else named
    own = FOLDER_UID if named is None else f"{FOLDER_UID}-{hashlib.sha256(title.encode()).hexdigest()[:12]}"
    uids = [own] if named is None or not _UID.fullmatch(named) else [named, own]
    for uid in uids:
        folder = find(ask, f"/folders/{uid}", "uid")
        if folder is not None:  # Its owners may rename it.
            return _present_folder(folder, refusals), uid
    query = urlencode({"type": "dash-folder", "query": title, "limit": 1000})
    alike = [entry for entry in _listed(ask, f"/search?{query}") if entry.get("title") == title]
    known = ", ".join(str(entry.get("uid")) for entry in alike)
    if alike and named is None:
        refusals.append(f"folder {json.dumps(title)} is somebody else's; --folder {known} uses it anyway")
    elif len(alike) > 1:
        refusals.append(
            f"folder {json.dumps(title)}: there are {len(alike)} folders of that name; use --folder with one of {known}"
        )
    elif alike:
        uid = str(alike[0].get("uid"))
        return _present_folder(find(ask, f"/folders/{uid}", "uid") or alike[0], refusals), uid
    request = ("POST", "/folders", {"uid": own, "title": title})
    return Step(what=f"folder {json.dumps(title)}", change="created", request=request), own


def _present_folder(folder: dict[str, Any], refusals: list[str]) -> Step:
    what = f"folder {json.dumps(folder.get('title'))}"
    if folder.get("canSave") is False:
        refusals.append(
            f"{what}: this token may not save there; give its account the right to edit it, or see --folder"
        )
    return Step(what=what, change="unchanged")


def _listed(ask: Ask, path: str) -> list[dict[str, Any]]:
    try:
        entries = ask("GET", path)
    except NotThere:  # Grafana will then refuse a duplicate name.
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PublishFailed(f"GET {ask.url}{path}: the answer is not the expected list; is this a Grafana?")
    return entries


# The data source.


def _data_source(ask: Ask, wanted: Wanted, refusals: list[str]) -> tuple[Step, str, str]:
    """Return the step for the data source, its UID and its name."""
    uid = wanted.data_source or DATA_SOURCE_UID
    try:
        present = find(ask, f"/datasources/uid/{quote(uid, safe='')}", "uid")
    except PublishFailed as error:
        # An Editor may query data sources, but neither see nor change their settings.
        is_enough = error.status == 403 and wanted.prometheus_url is None and wanted.scrape_interval is None
        name = _visible_name(ask, uid) if is_enough else None
        if name is None:
            raise
        return Step(what=f"data source {json.dumps(name)}", change="taken as it is"), uid, name
    if wanted.data_source is not None:
        name = uid if present is None else str(present.get("name", uid))
        if present is None:
            refusals.append(f"data source {json.dumps(uid)} does not exist; name the UID of one that does")
        elif present.get("type") != "prometheus":
            refusals.append(
                f"data source {json.dumps(name)} has the type {json.dumps(present.get('type'))}; name a Prometheus"
            )
        return Step(what=f"data source {json.dumps(name)}", change="taken as it is"), uid, name
    if present is None:
        named = find(ask, f"/datasources/name/{quote(DATA_SOURCE_NAME)}", "uid")
        if named is not None:
            refusals.append(
                f"data source {json.dumps(DATA_SOURCE_NAME)} is somebody else's; --data-source {named['uid']} takes it"
                " as it is"
            )
    name = DATA_SOURCE_NAME if present is None else str(present.get("name", DATA_SOURCE_NAME))
    return _own_data_source(present, wanted, refusals), uid, name


def _own_data_source(present: dict[str, Any] | None, wanted: Wanted, refusals: list[str]) -> Step:
    """Set what the user named; keep the rest, including the name and the way of querying, which owners may change."""
    if present is None:
        body: dict[str, Any] = {
            "uid": DATA_SOURCE_UID,
            "name": DATA_SOURCE_NAME,
            "type": "prometheus",
            "access": "proxy",
            "url": wanted.prometheus_url or DEFAULT_PROMETHEUS,
            "jsonData": {"timeInterval": wanted.scrape_interval} if wanted.scrape_interval else {},
        }
        what = f"data source {json.dumps(DATA_SOURCE_NAME)}"
        return Step(what=what, change="created", request=("POST", "/datasources", _marked(body)))
    what = f"data source {json.dumps(present.get('name', DATA_SOURCE_NAME))}"
    named: dict[str, Any] = {"type": "prometheus"}
    if wanted.prometheus_url is not None:
        named["url"] = wanted.prometheus_url
    if wanted.scrape_interval is not None:
        named["jsonData"] = {"timeInterval": wanted.scrape_interval}
    if covers(present, named):
        return Step(what=what, change="unchanged")
    settings = present.get("jsonData") or {}
    changes = difference(present, named)
    if present.get("readOnly") is True:
        refusals.append(
            f"{what} is provisioned from a file of that Grafana, and differs ({_in_short(changes)}); change it in that"
            f" file, leave out --prometheus and --scrape-interval, or take it as it is with --data-source"
            f" {DATA_SOURCE_UID}"
        )
    elif not wanted.is_forced and settings.get(marks.DATA_SOURCE_KEY) != marks.of_data_source(present):
        refusals.append(
            f"{what} was changed by somebody since the last push, or has no mark of one ({_in_short(changes)}); look at"
            " it there, then push with --force to overwrite it, or without what differs"
        )
    merged = {**present, **named, "jsonData": {**settings, **named.get("jsonData", {})}}
    request = ("PUT", f"/datasources/uid/{DATA_SOURCE_UID}", _marked(merged))
    return Step(what=what, change="updated", difference=changes, request=request)


def _marked(source: dict[str, Any]) -> dict[str, Any]:
    """Return the data source with the mark of the push that writes it."""
    return {**source, "jsonData": {**source["jsonData"], marks.DATA_SOURCE_KEY: marks.of_data_source(source)}}


def _in_short(changes: Sequence[str]) -> str:
    """Return what would be removed and added, on one line."""
    lines = [" ".join(line.split()).rstrip(",") for line in changes if line[:1] in "+-"]
    rest = f", and {len(lines) - _MOST_CHANGES} lines more" if len(lines) > _MOST_CHANGES else ""
    return ", ".join(lines[:_MOST_CHANGES]) + rest


def _visible_name(ask: Ask, uid: str) -> str | None:
    """Return the name of a Prometheus that this account may query, or None, from the settings for Grafana's pages."""
    settings = find(ask, "/frontend/settings", "datasources")
    sources: Mapping[str, Any] = {} if settings is None else settings["datasources"]
    for name, source in sources.items():
        if isinstance(source, dict) and (source.get("uid"), source.get("type")) == (uid, "prometheus"):
            return name
    return None


# Dashboards.


def _pointed_at(dashboard: dict[str, Any], source_uid: str, source_name: str) -> dict[str, Any]:
    """Return the dashboard with this data source chosen, and without the id and version that Grafana sets."""
    pointed = {key: value for key, value in dashboard.items() if key not in ("id", "version")}
    templating = pointed.get("templating", {})
    chosen = {"selected": True, "text": source_name, "value": source_uid}
    variables = [
        {**variable, "current": chosen} if variable.get("name") == DATA_SOURCE_VARIABLE else variable
        for variable in templating.get("list", [])
    ]
    return {**pointed, "templating": {**templating, "list": variables}} if variables else pointed


def _dashboard(
    ask: Ask, boards: Boards, sent: dict[str, Any], folder_uid: str, wanted: Wanted, refusals: list[str]
) -> Step:
    """Save a dashboard over the version that was read; Grafana refuses that if somebody has changed it meanwhile.

    A dashboard in another folder was moved there and stays, unless the user named a folder. One of ours with the UID of
    older releases is replaced by the new one.
    """
    what = f"dashboard {json.dumps(sent['title'])}"

    def save(present: Board | None, folder: str) -> Request:
        version = 1 if present is None else present.version + 1
        marked = {**sent, marks.DASHBOARD_KEY: marks.of_dashboard(sent, version)}
        return boards.save(marked, present, folder, MESSAGE)

    present, older = boards.read(sent["uid"]), None
    if present is None:
        older = boards.read(sent["uid"].removeprefix(UID_PREFIX))
        if older is None or not older.has_tag(TAG):  # Without our tag it is somebody else's.
            return Step(what=what, change="created", request=save(None, folder_uid), lies_in=folder_uid)
    dashboard = present or older
    assert dashboard is not None, "one of the two exists"
    if not dashboard.has_tag(TAG):
        refusals.append(
            f"{what}: the dashboard {json.dumps(dashboard.document.get('title'))} has its UID {sent['uid']} and lacks"
            f' the tag "{TAG}", so it is somebody else\'s; delete it, or give it another UID or the tag'
        )
        return Step(what=what, change="unchanged")
    lies_in = dashboard.folder or folder_uid
    where = f"folder {json.dumps(dashboard.folder_title or lies_in)}"
    is_moved = lies_in != folder_uid and wanted.folder is not None
    if lies_in != folder_uid and not is_moved:
        what += f", in {where}"
    saved, mark = dashboard.document, dashboard.document.get(marks.DASHBOARD_KEY)
    is_as_pushed = isinstance(mark, dict) and mark.get("version") == saved.get("version")
    is_same = present is not None and (
        covers(saved, sent) or (is_as_pushed and mark == marks.of_dashboard(sent, dashboard.version))
    )
    if is_same and not is_moved:
        return Step(what=what, change="unchanged", lies_in=lies_in)
    if dashboard.file is not None:
        refusals.append(
            f"{what} is provisioned from {json.dumps(dashboard.file)} of that Grafana, and differs; put the rendered"
            " file there, or take it out of the provisioning and push again"
        )
    elif not dashboard.may_save:
        refusals.append(f"{what}: this token may not save it; give its account the right to edit it")
    elif not wanted.is_forced:
        if is_moved:
            refusals.append(
                f"{what} lies in {where}; leave out --folder to update it there, or push with --force to move it"
            )
        if not is_same and not is_as_pushed and (whose := _others_save(ask, str(saved["uid"]))) is not None:
            refusals.append(f"{what} {whose}; look at it there, then push with --force to overwrite it")
    goes_to = folder_uid if is_moved else lies_in
    moves = (f"-folder {json.dumps(lies_in)}", f"+folder {json.dumps(folder_uid)}") if is_moved else ()
    return Step(
        what=what,
        change="updated" if older is None else "moved to its new UID",
        difference=(*moves, *(() if is_same else difference(saved, sent))),
        request=save(present, goes_to),
        cleaning=None if older is None else boards.delete(str(older.document["uid"])),
        lies_in=goes_to,
    )


def _others_save(ask: Ask, uid: str) -> str | None:
    """Return who saved the newest version of a dashboard, as the end of a sentence; None if a push did."""
    path = f"/dashboards/uid/{uid}/versions?limit=1"
    try:
        answer = ask("GET", path)
    except NotThere:
        return "has no history that shows who saved it"
    # Grafana 9 and 10 give a list; later ones a page of it.
    versions = answer.get("versions") if isinstance(answer, dict) else answer
    if not isinstance(versions, list) or not all(isinstance(version, dict) for version in versions):
        raise PublishFailed(f"GET {ask.url}{path}: the answer is not a list of versions; is this a Grafana?")
    if not versions:
        return "has no history that shows who saved it"
    newest = max(versions, key=lambda version: version.get("version", 0))
    if newest.get("message") == MESSAGE:
        return None
    message = f" ({json.dumps(newest['message'])})" if newest.get("message") else ""
    who, day = newest.get("createdBy") or "somebody", str(newest.get("created", ""))[:10]
    return f"was saved by {json.dumps(who)} on {day} as version {newest.get('version')}{message}, and by no push since"


# Alerts.


def _alert(ask: Ask, rule: dict[str, Any], refusals: list[str], *, is_forced: bool) -> Step:
    what = f"alert {json.dumps(rule['title'])}"
    rules = "/v1/provisioning/alert-rules"
    path = f"{rules}/{rule['uid']}"
    marked = {**rule, "annotations": {**rule["annotations"], marks.ALERT_KEY: marks.of_alert(rule)}}
    try:
        present = ask("GET", path)
    except PublishFailed as error:
        if error.status != 404:  # Grafana's answer if there is no such rule.
            raise
        return Step(what=what, change="created", request=("POST", rules, marked))
    if not isinstance(present, dict):
        raise PublishFailed(f"GET {ask.url}{path}: the answer is not an alert rule; is this a Grafana?")
    if covers(present, rule):
        return Step(what=what, change="unchanged")
    changes = difference(present, rule)
    if present.get("provenance") == "file":
        refusals.append(
            f"{what} is provisioned from a file of that Grafana, and differs; take it out of the provisioning"
        )
    elif not is_forced and (present.get("annotations") or {}).get(marks.ALERT_KEY) != marks.of_alert(present):
        refusals.append(
            f"{what} was changed by somebody since the last push, or has no mark of one ({_in_short(changes)}); look at"
            " it there, then push with --force to overwrite it"
        )
    return Step(what=what, change="updated", difference=changes, request=("PUT", path, marked))
