"""A Grafana of a few endpoints that keeps what it is given and answers as the real one does, its errors included."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

TOKEN = "glsa_not-to-be-seen-anywhere"

Body = dict[str, Any]
Answer = tuple[int, Any]


@dataclass(slots=True)
class FakeGrafana:
    """State and answers; `port` is where it listens.

    broken: an answer to every request instead of the right one: a status, and a body as it is sent.
    location: where it sends on to, if it does.
    drip_s: how long it waits after each byte of a body, so that no client's limit of silence is ever reached.
    version_changes: how often another person saves a dashboard between our reading it and our saving it.
    version: of Grafana. is_paged: whether the list of a dashboard's versions is in a page, as since Grafana 11.
    is_editors: whether the token is an Editor's, who may neither look at data sources nor touch them and alerts.
    may_write: whether the token may change anything at all.
    additions: keys that it adds to each dashboard that it saves, or sets in it.
    lacks: what it does not know of: "health", "search", "versions".
    is_provisioned: whether it refuses to save any dashboard, as of a file, though it shows none.
    has_newer_api: whether it has `/apis/dashboard.grafana.app`; without the older one it lacks "dashboards".
    """

    port: int = 0
    prefix: str = ""
    folders: dict[str, Body] = field(default_factory=dict)
    data_sources: dict[str, Body] = field(default_factory=dict)
    dashboards: dict[str, Body] = field(default_factory=dict)
    dashboard_folders: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: tuple[int, bytes] | None = None
    location: str | None = None
    drip_s: float = 0.0
    version_changes: int = 0
    version: str = "11.6.0"
    is_paged: bool = True
    is_editors: bool = False
    may_write: bool = True
    additions: Body = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    is_provisioned: bool = False
    has_newer_api: bool = False
    metas: dict[str, Body] = field(default_factory=dict)
    versions: dict[str, list[Body]] = field(default_factory=dict)
    rules: dict[str, Body] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its address, as a user writes it."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    @property
    def changes(self) -> list[str]:
        """The requests that may have changed something."""
        return [request for request in self.requests if not request.startswith("GET")]

    def save_by_hand(self, uid: str, message: str = "", **changes: Any) -> None:
        """Save a dashboard as a person does in the browser."""
        self._save(uid, self.dashboards[uid] | changes, message, "ann")

    def save_anew(self, uid: str, dashboard: Body) -> None:
        """Have a dashboard there that nobody had before."""
        self._save(uid, dashboard, "", "ann")

    def save_older(self, uid: str, **changes: Any) -> None:
        """Save a dashboard as a push of an older release did, which left no mark in it."""
        unmarked = {key: value for key, value in self.dashboards[uid].items() if key != "observatoryPush"}
        self._save(uid, unmarked | changes, "observatory dashboards push", "sa-1-observatory")

    def answer(self, verb: str, path: str, body: Body, authorization: str | None) -> Answer:
        """What the real one says to this request."""
        self.requests.append(f"{verb} {path}")
        if authorization != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key", "messageId": "api-key.invalid", "statusCode": 401}
        if path.startswith(f"{self.prefix}/apis/") and self.has_newer_api:
            return self._newer(verb, path.removeprefix(f"{self.prefix}/apis/").split("/"), body)
        if not path.startswith(f"{self.prefix}/api/"):
            return 404, {"message": "Not found"}
        path, _, query = path.removeprefix(f"{self.prefix}/api/").partition("?")
        parts = path.split("/")
        if not self.lacks.isdisjoint(parts):
            return 404, {"message": "Not found"}
        if not self.may_write and verb != "GET":
            return 403, {"message": "Permission denied"}
        if self.is_editors and parts[0] in ("datasources", "v1"):
            return 403, {
                "message": "You'll need additional permissions to perform this action.",
                "title": "Access denied",
            }
        match verb, parts:
            case "GET", ["health"]:
                return 200, {"database": "ok", "version": self.version, "commit": "0"}
            case "GET", ["dashboards", "home"]:
                return 200, {"redirectUri": "", "meta": {}, "dashboard": {}}
            case "DELETE", ["dashboards", "uid", uid] if uid in self.dashboards:
                return 200, {"title": self._forget(uid), "message": "Dashboard deleted"}
            case "GET", ["frontend", "settings"]:
                named = {source["name"]: source for source in self.data_sources.values()}
                return 200, {"datasources": named, "buildInfo": {"version": self.version}, "namespace": "org-2"}
            case "GET", ["search"]:
                (title,) = parse_qs(query)["query"]
                alike = [folder for folder in self.folders.values() if title.lower() in folder["title"].lower()]
                return 200, [{"uid": one["uid"], "title": one["title"], "type": "dash-folder"} for one in alike]
            case "GET", ["dashboards", "uid", uid, "versions"] if uid in self.dashboards:
                newest_first = self.versions[uid][::-1][: int(parse_qs(query)["limit"][0])]
                return 200, {"continueToken": "", "versions": newest_first} if self.is_paged else newest_first
            case verb, ["v1", "provisioning", "alert-rules", *uids]:
                return self._rule(verb, uids, body)
            case "GET", ["folders", uid]:
                return self._found(self.folders.get(uid), "folder not found")
            case "POST", ["folders"]:
                return self._new_folder(body)
            case "GET", ["datasources", "uid", uid]:
                return self._found(self.data_sources.get(uid), "Data source not found")
            case "GET", ["datasources", "name", name]:
                named = {source["name"]: source for source in self.data_sources.values()}
                return self._found(named.get(unquote(name)), "Data source not found")
            case "POST", ["datasources"]:
                return self._new_data_source(body)
            case "PUT", ["datasources", "uid", uid]:
                self.data_sources[uid] = {**body, "version": self.data_sources[uid]["version"] + 1}
                return 200, {"datasource": self.data_sources[uid], "message": "Datasource updated"}
            case "GET", ["dashboards", "uid", uid]:
                return self._read_dashboard(uid)
            case "POST", ["dashboards", "db"]:
                return self._save_dashboard(body)
        return 404, {"message": "Not found"}

    def _newer(self, verb: str, parts: list[str], body: Body) -> Answer:
        """What `/apis/dashboard.grafana.app` says: dashboards are resources, in the form of Kubernetes."""
        if parts == ["dashboard.grafana.app"]:
            versions = [{"version": name} for name in ("v2alpha1", "v1beta1", "v0alpha1")]
            return 200, {"kind": "APIGroup", "name": parts[0], "versions": versions}
        if parts[:5] != ["dashboard.grafana.app", "v1beta1", "namespaces", "org-2", "dashboards"] or len(parts) > 6:
            return 404, {"kind": "Status", "status": "Failure", "message": "not found", "code": 404}
        uid = parts[5] if len(parts) == 6 else body["metadata"]["name"]
        present = self.dashboards.get(uid)
        if verb != "POST" and present is None:
            message = f'dashboards.dashboard.grafana.app "{uid}" not found'
            return 404, {"kind": "Status", "status": "Failure", "message": message, "reason": "NotFound", "code": 404}
        if verb == "DELETE":
            self._forget(uid)
            return 200, {"kind": "Status", "status": "Success"}
        if verb in ("POST", "PUT"):
            said = body["metadata"]["annotations"]
            revision = None if present is None else str(present["version"])
            if verb == "POST" and present is not None:
                return 409, {"kind": "Status", "message": "already exists", "reason": "AlreadyExists", "code": 409}
            if body["metadata"].get("resourceVersion") != revision:
                message = "the object has been modified; please apply your changes to the latest version and try again"
                return 409, {"kind": "Status", "message": message, "reason": "Conflict", "code": 409}
            assert not {"id", "uid", "version"} & body["spec"].keys()
            self.dashboard_folders[uid] = said["grafana.app/folder"]
            self._save(uid, {**body["spec"], "uid": uid}, said["grafana.app/message"], "sa-1-observatory")
        saved = self.dashboards[uid]
        metadata = {
            "name": uid,
            "namespace": "org-2",
            "generation": saved["version"],
            "resourceVersion": str(saved["version"]),
            "annotations": {"grafana.app/folder": self.dashboard_folders[uid], **self.metas.get(uid, {})},
        }
        spec = {key: value for key, value in saved.items() if key not in ("id", "uid", "version")}
        return 200, {"kind": "Dashboard", "apiVersion": "/".join(parts[:2]), "metadata": metadata, "spec": spec}

    def _forget(self, uid: str) -> str:
        del self.dashboard_folders[uid], self.versions[uid]
        return str(self.dashboards.pop(uid)["title"])

    def _found(self, thing: Body | None, missing: str) -> Answer:
        return (200, thing) if thing is not None else (404, {"message": missing})

    def _new_folder(self, body: Body) -> Answer:
        if body["uid"] in self.folders:
            return 412, {"message": "the folder has been changed by someone else", "status": "version-mismatch"}
        if any(folder["title"] == body["title"] for folder in self.folders.values()):
            return 409, {"message": "a folder with the same name already exists in the current location"}
        self.folders[body["uid"]] = {"id": len(self.folders) + 1, "version": 1, **body}
        return 200, self.folders[body["uid"]]

    def _new_data_source(self, body: Body) -> Answer:
        if any(source["name"] == body["name"] for source in self.data_sources.values()):
            return 409, {"message": "data source with the same name already exists"}
        source = {"id": len(self.data_sources) + 1, "orgId": 1, "version": 1, "jsonData": {}, **body}
        self.data_sources[body["uid"]] = source
        return 200, {"datasource": source, "message": "Datasource added", "name": body["name"]}

    def _read_dashboard(self, uid: str) -> Answer:
        if uid not in self.dashboards:
            return 404, {"message": "Dashboard not found"}
        meta = {"folderUid": self.dashboard_folders[uid], "slug": uid, "canSave": True, **self.metas.get(uid, {})}
        dashboard = dict(self.dashboards[uid])
        self.dashboards[uid]["version"] += self.version_changes
        return 200, {"meta": meta, "dashboard": dashboard}

    def _save_dashboard(self, body: Body) -> Answer:
        dashboard, folder = body["dashboard"], body["folderUid"]
        uid = dashboard["uid"]
        if folder not in self.folders:
            return 400, {"message": "folder not found"}
        present = self.dashboards.get(uid)
        if present is not None and not body.get("overwrite") and present["version"] != dashboard["version"]:
            return 412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
        if self.is_provisioned or self.metas.get(uid, {}).get("provisioned"):
            return 400, {"message": "Cannot save provisioned dashboard"}
        self.dashboard_folders[uid] = folder
        version = self._save(uid, {**dashboard, **self.additions}, body["message"], "sa-1-observatory")
        return 200, {"id": self.dashboards[uid]["id"], "uid": uid, "status": "success", "version": version}

    def _save(self, uid: str, dashboard: Body, message: str, who: str) -> int:
        present = self.dashboards.get(uid)
        version: int = 1 if present is None else present["version"] + 1
        number = len(self.dashboards) + 1 if present is None else present["id"]
        self.dashboards[uid] = {**dashboard, "id": number, "version": version}
        saved = {"version": version, "message": message, "createdBy": who, "created": "2026-11-23T12:00:00Z"}
        self.versions.setdefault(uid, []).append(saved)
        return version

    def _rule(self, verb: str, uids: list[str], body: Body) -> Answer:
        uid = uids[0] if uids else body["uid"]
        if verb == "GET" or (verb == "PUT" and uid not in self.rules):
            return (200, self.rules[uid]) if uid in self.rules else (404, None)
        if verb == "POST" and uid in self.rules:
            return 409, {"message": "a rule of that UID exists"}
        self.rules[uid] = {"id": 1, "orgID": 1, "provenance": "api", "isPaused": False, **body}
        return (201 if verb == "POST" else 200), self.rules[uid]


@contextmanager
def serve(grafana: FakeGrafana) -> Iterator[FakeGrafana]:
    """Let it answer on a free loopback port."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}") or {}
            status, answer = grafana.answer(self.command, self.path, body, self.headers.get("Authorization"))
            text = b"" if answer is None else json.dumps(answer).encode()
            if grafana.broken is not None:
                status, text = grafana.broken
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            if grafana.location is not None:
                self.send_header("Location", grafana.location)
            self.end_headers()
            if grafana.drip_s == 0:
                self.wfile.write(text)
                return
            for byte in text:
                if is_over.wait(grafana.drip_s):
                    return
                self.wfile.write(bytes([byte]))

        do_GET = do_POST = do_PUT = do_DELETE = _respond  # noqa: N815  # The names that http.server calls.

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        grafana.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield grafana
        finally:
            is_over.set()
            server.shutdown()
            thread.join()
