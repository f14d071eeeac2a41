"""A Grafana of a few endpoints that keeps what it is given and answers as the real one does, its errors included."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    @property
    def url(self) -> str:
        """Its address, as a user writes it."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    @property
    def changes(self) -> list[str]:
        """The requests that may have changed something."""
        return [request for request in self.requests if not request.startswith("GET")]

    def answer(self, verb: str, path: str, body: Body, authorization: str | None) -> Answer:
        """What the real one says to this request."""
        self.requests.append(f"{verb} {path}")
        if authorization != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key", "messageId": "api-key.invalid", "statusCode": 401}
        if not path.startswith(f"{self.prefix}/api/"):
            return 404, {"message": "Not found"}
        match verb, path.removeprefix(f"{self.prefix}/api/").split("/"):
            case "GET", ["folders", uid]:
                return self._found(self.folders.get(uid), "folder not found")
            case "POST", ["folders"]:
                return self._new_folder(body)
            case "GET", ["datasources", "uid", uid]:
                return self._found(self.data_sources.get(uid), "Data source not found")
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
        meta = {"folderUid": self.dashboard_folders[uid], "slug": uid}
        dashboard = dict(self.dashboards[uid])
        self.dashboards[uid]["version"] += self.version_changes
        return 200, {"meta": meta, "dashboard": dashboard}

    def _save_dashboard(self, body: Body) -> Answer:
        dashboard, folder = body["dashboard"], body["folderUid"]
        uid = dashboard["uid"]
        if folder not in self.folders:
            return 400, {"message": "folder not found"}
        present = self.dashboards.get(uid)
        if present is not None and not body["overwrite"] and present["version"] != dashboard["version"]:
            return 412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
        version = 1 if present is None else present["version"] + 1
        number = len(self.dashboards) + 1 if present is None else present["id"]
        self.dashboards[uid] = {**dashboard, "id": number, "version": version}
        self.dashboard_folders[uid] = folder
        return 200, {"id": number, "uid": uid, "status": "success", "version": version}


@contextmanager
def serve(grafana: FakeGrafana) -> Iterator[FakeGrafana]:
    """Let it answer on a free loopback port."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}") or {}
            status, answer = grafana.answer(self.command, self.path, body, self.headers.get("Authorization"))
            text = json.dumps(answer).encode()
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

        do_GET = do_POST = do_PUT = _respond  # noqa: N815  # The names that http.server calls.

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
