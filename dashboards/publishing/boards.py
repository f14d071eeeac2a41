"""Reads and writes a Grafana's dashboards, by `/api/dashboards` or by its successor, `/apis/dashboard.grafana.app`.

The first API is deprecated since Grafana 12, but used as long as it answers, because every Grafana from 9 on has it.
Source: Grafana, HTTP API, Dashboard API (legacy), and New API structure; never tried on a real Grafana.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dashboards.publishing.answers import Ask, NotThere, PublishFailed, find

Request = tuple[str, str, dict[str, Any] | None]
GROUP = "/apis/dashboard.grafana.app"
_VERSIONS = ("v1", "v1beta1", "v0alpha1")
"""Versions of the group that accept dashboards as they are rendered, best first; v2 has another form."""
_ANNOTATION = "grafana.app/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard in a Grafana.

    document: with its uid and version. folder: its folder's UID; None if unknown. file: the file from which it is
    provisioned, or None. revision: its revision in the newer API, which refuses to overwrite another one.
    """

    document: dict[str, Any]
    folder: str | None = None
    folder_title: str | None = None
    file: str | None = None
    may_save: bool = True
    revision: str | None = None

    @property
    def version(self) -> int:
        """How often the dashboard was saved."""
        version: int = self.document.get("version", 0)
        return version

    def has_tag(self, tag: str) -> bool:
        tags = self.document.get("tags")
        return isinstance(tags, list) and tag in tags


class Boards(Protocol):
    """The dashboards of a Grafana. Writing methods only return a request, which changes nothing yet."""

    def read(self, uid: str) -> Board | None:
        """Return the dashboard of this UID, or None."""

    def save(self, document: Mapping[str, Any], present: Board | None, folder: str, message: str) -> Request:
        """Return the request that saves a dashboard over the one that was read, in this folder."""

    def delete(self, uid: str) -> Request:
        """Return the request that deletes a dashboard."""


def boards_of(ask: Ask) -> Boards:
    """Return the dashboards of this Grafana, through the API that it has."""
    try:
        ask("GET", "/dashboards/home")
    except NotThere:
        return _by_newer_api(ask) or _ByFirstApi(ask)
    except PublishFailed as error:
        if error.status != 403:  # The API exists; rights are checked for each dashboard.
            raise
    return _ByFirstApi(ask)


@dataclass(frozen=True, slots=True)
class _ByFirstApi:
    """Dashboards through `/api/dashboards`."""

    ask: Ask

    def read(self, uid: str) -> Board | None:
        answer = find(self.ask, f"/dashboards/uid/{uid}", "dashboard")
        if answer is None:
            return None
        meta = answer.get("meta") or {}
        return Board(
            document=answer["dashboard"],
            folder=meta.get("folderUid"),
            folder_title=meta.get("folderTitle"),
            file=(meta.get("provisionedExternalId") or "a file") if meta.get("provisioned") is True else None,
            may_save=meta.get("canSave") is not False,
        )

    def save(self, document: Mapping[str, Any], present: Board | None, folder: str, message: str) -> Request:
        numbered = {**document, "id": None, "version": 0 if present is None else present.version}
        body = {"dashboard": numbered, "folderUid": folder, "overwrite": False, "message": message}
        return "POST", "/dashboards/db", body

    def delete(self, uid: str) -> Request:
        return "DELETE", f"/dashboards/uid/{uid}", None


def _by_newer_api(ask: Ask) -> _ByNewerApi | None:
    """Return the dashboards through the newer API; None if the Grafana has no version of it that we can write."""
    try:
        group = ask("GET", GROUP)
    except NotThere:
        return None
    listed = group.get("versions") if isinstance(group, dict) else None
    names = [version.get("version") for version in listed or () if isinstance(version, dict)]
    version = next((name for name in _VERSIONS if name in names), None)
    if version is None:
        return None
    settings = find(ask, "/frontend/settings", "namespace")
    return _ByNewerApi(ask, version, "default" if settings is None else str(settings["namespace"]))


@dataclass(frozen=True, slots=True)
class _ByNewerApi:
    """Dashboards through `/apis/dashboard.grafana.app`, where they are resources; its generation is our version."""

    ask: Ask
    version: str
    namespace: str

    @property
    def _path(self) -> str:
        return f"{GROUP}/{self.version}/namespaces/{self.namespace}/dashboards"

    def read(self, uid: str) -> Board | None:
        answer = find(self.ask, f"{self._path}/{uid}", "spec")
        if answer is None:
            return None
        metadata = answer.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        is_managed = f"{_ANNOTATION}managedBy" in annotations
        return Board(
            document={**answer["spec"], "uid": uid, "version": metadata.get("generation", 0)},
            folder=annotations.get(f"{_ANNOTATION}folder"),
            file=annotations.get(f"{_ANNOTATION}sourcePath", "a file") if is_managed else None,
            revision=metadata.get("resourceVersion"),
        )

    def save(self, document: Mapping[str, Any], present: Board | None, folder: str, message: str) -> Request:
        uid = document["uid"]
        metadata: dict[str, Any] = {
            "name": uid,
            "annotations": {f"{_ANNOTATION}folder": folder, f"{_ANNOTATION}message": message},
        }
        if present is not None:
            metadata["resourceVersion"] = present.revision
        body = {
            "apiVersion": f"{GROUP.removeprefix('/apis/')}/{self.version}",
            "kind": "Dashboard",
            "metadata": metadata,
            "spec": {key: value for key, value in document.items() if key not in ("id", "uid", "version")},
        }
        return ("POST", self._path, body) if present is None else ("PUT", f"{self._path}/{uid}", body)

    def delete(self, uid: str) -> Request:
        return "DELETE", f"{self._path}/{uid}", None
