"""Publishes folder, data source and dashboards to a Grafana, and changes nothing that is already so.

Uses grafana-api, which is archived: whatever it or the server does wrong becomes one `PublishFailed` here.
Not covered: alert rules, which Prometheus reads from rendered/rules.yaml.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

RENDERED = Path(__file__).parent / "rendered"
FOLDER_UID = DATA_SOURCE_UID = "parallel-observatory"
FOLDER_TITLE = DATA_SOURCE_NAME = "Parallel Observatory"

_TIMEOUT_S = 30.0
"""How long a server may be silent."""
REQUEST_S = 60.0
"""How long one request may take in all, even while the server sends something."""
_ANSWER_LETTERS = 200
_ADVICE = {
    401: "the token in GRAFANA_TOKEN is not valid there",
    403: "the token's account may not do that; it needs the role Editor, and Admin for the data source",
    404: "is this a Grafana, and has its address a path?",
    409: "something else there has that name",
    412: "somebody changed it meanwhile, or something else has that name; look there, then push again",
}

Change = Literal["created", "updated", "unchanged"]
Ask = Callable[..., Any]


class PublishFailed(RuntimeError):
    """The Grafana could not be reached, refused, or gave no valid answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of one thing in Grafana."""

    what: str
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A Grafana's address, in the parts that its client needs."""

    protocol: str
    host: str
    port: int | None
    prefix: str


def parse_address(url: str) -> Address:
    """Return the parts of a Grafana's URL.

    Raises:
        ValueError: it is no http or https address, or holds a user, a password, a query or a fragment.
    """
    parts = _split(url, "Grafana", "http://host:3000 or https://host/grafana")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the Grafana's address holds a user; leave it out and put a token into GRAFANA_TOKEN")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    path = parts.path.strip("/")
    return Address(protocol=parts.scheme, host=host, port=parts.port, prefix=f"{path}/" if path else "")


def check_prometheus(url: str) -> None:
    """Check that Grafana could ask a Prometheus at this address.

    Raises:
        ValueError: it is no http or https address, or holds a query or a fragment.
    """
    _split(url, "Prometheus", "http://host:9090 or https://host/prometheus")


def _split(url: str, whose: str, looks: str) -> SplitResult:
    """Return the parts of a server's URL, each checked."""
    try:
        parts = urlsplit(url)
        assert parts.port is None or parts.port >= 0, "asked for, so that one that is none is refused"
        (parts.hostname or "").encode("idna")
    except UnicodeError:  # A part of the host's name is empty, or has more than 63 letters.
        raise ValueError(f"the {whose}'s address has no name of a machine; it looks like {looks}") from None
    except ValueError as error:
        raise ValueError(f"the {whose}'s address cannot be read: {error}; it looks like {looks}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # Without a user and a password.
        raise ValueError(f'the {whose}\'s address is "{shown}"; it looks like {looks}')
    return parts


def read_rendered(folder: Path = RENDERED) -> list[dict[str, Any]]:
    """Return the rendered dashboards, in order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def publish(
    address: Address,
    token: str,
    prometheus_url: str,
    dashboards: list[dict[str, Any]],
    *,
    request_s: float = REQUEST_S,
) -> Iterator[Published]:
    """Bring a Grafana to the rendered state, one thing after the other, and yield what became of each.

    prometheus_url: where Grafana finds the Prometheus, seen from Grafana. request_s: see REQUEST_S.

    Raises:
        PublishFailed: what was done before stays; a second push goes on from there.
    """
    from grafana_api.grafana_face import GrafanaFace

    face = GrafanaFace(
        auth=token,
        host=address.host,
        port=address.port,
        url_path_prefix=address.prefix,
        protocol=address.protocol,
        timeout=_TIMEOUT_S,
    )

    face.api.s.max_redirects = 0  # Redirected, a POST would become a GET, and look like a success.

    def ask(verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = f"{verb} {face.api.url}{path}"
        with _told_apart(request, token):
            answers, is_whole = _within(request_s, lambda: getattr(face.api, verb)(path, json=body))
        if not is_whole:
            raise PublishFailed(
                f"{request}: no complete answer within {request_s:g} s; is it, or a proxy before it, overloaded?"
            )
        return answers

    yield _folder(ask)
    yield _data_source(ask, prometheus_url)
    for dashboard in dashboards:
        yield _dashboard(ask, dashboard)


def _folder(ask: Ask) -> Published:
    what = f'folder "{FOLDER_TITLE}"'
    if _find(ask, f"/folders/{FOLDER_UID}", "uid") is not None:  # Its owners may rename it.
        return Published(what=what, change="unchanged")
    ask("POST", "/folders", {"uid": FOLDER_UID, "title": FOLDER_TITLE})
    return Published(what=what, change="created")


def _data_source(ask: Ask, prometheus_url: str) -> Published:
    what = f'data source "{DATA_SOURCE_NAME}"'
    wanted = {
        "uid": DATA_SOURCE_UID,
        "name": DATA_SOURCE_NAME,
        "type": "prometheus",
        "access": "proxy",
        "url": prometheus_url,
    }
    present = _find(ask, f"/datasources/uid/{DATA_SOURCE_UID}", "uid")
    if present is None:
        ask("POST", "/datasources", wanted)
        return Published(what=what, change="created")
    if all(present.get(key) == value for key, value in wanted.items()):
        return Published(what=what, change="unchanged")
    ask("PUT", f"/datasources/uid/{DATA_SOURCE_UID}", {**present, **wanted})
    return Published(what=what, change="updated")


def _dashboard(ask: Ask, wanted: dict[str, Any]) -> Published:
    """Save a dashboard over the version that was read; Grafana refuses it where somebody changed that meanwhile."""
    what = f'dashboard "{wanted["title"]}"'
    present = _find(ask, f"/dashboards/uid/{wanted['uid']}", "dashboard")
    version = 0
    if present is not None:
        saved, folder = present["dashboard"], present.get("meta", {}).get("folderUid")
        if folder == FOLDER_UID and _content(saved) == _content(wanted):
            return Published(what=what, change="unchanged")
        version = saved.get("version", 0)
    body = {"dashboard": {**_content(wanted), "id": None, "version": version}, "folderUid": FOLDER_UID}
    ask("POST", "/dashboards/db", {**body, "overwrite": False, "message": "observatory dashboards push"})
    return Published(what=what, change="created" if present is None else "updated")


def _content(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard without the two numbers that Grafana sets."""
    return {key: value for key, value in dashboard.items() if key not in ("id", "version")}


def _find(ask: Ask, path: str, key: str) -> dict[str, Any] | None:
    """Return what is there, or None.

    Raises:
        PublishFailed: the answer has no such key, and so comes from no Grafana.
    """
    try:
        found = ask("GET", path)
    except _NotThere:
        return None
    if not isinstance(found, dict) or key not in found:
        raise PublishFailed(f"GET {path}: the answer has no {key} in it; is this a Grafana?")
    return found


def _within(limit_s: float, question: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what the question answers, and whether it did in this time; raise what it raises.

    The client's own limit begins anew with each byte. A thread that is late is left behind, and ends with the program.
    """
    done: Future[Any] = Future()

    def ask() -> None:
        try:
            done.set_result(question())
        except BaseException as error:  # noqa: BLE001  # Raised again by `done.result()`.
            done.set_exception(error)

    threading.Thread(target=ask, name="request", daemon=True).start()
    _, late = wait([done], limit_s)
    return (None, False) if late else (done.result(), True)


class _NotThere(PublishFailed):
    """Grafana knows no such thing."""


@contextmanager
def _told_apart(request: str, token: str) -> Iterator[None]:
    """Turn each way in which a request can fail into one line that tells it from the others, without the token.

    The client reads `message` from any error body; a plain text with that word in it, or a body that is no object,
    makes it raise TypeError. All errors of requests are OSErrors; for an answer that is not JSON, the error is also a
    JSONDecodeError.
    """
    from grafana_api.grafana_api import GrafanaException

    try:
        yield
    except GrafanaException as error:
        answer = " ".join(str(error.message).split()).replace(token, "...")[:_ANSWER_LETTERS]
        advice = _ADVICE.get(error.status_code)
        line = f"{request}: status {error.status_code}: {answer}" + (f"; {advice}" if advice else "")
        is_grafanas = isinstance(error.response, dict) and "message" in error.response
        if error.status_code == 404 and is_grafanas:
            raise _NotThere(line) from None
        raise PublishFailed(line) from None
    except (json.JSONDecodeError, TypeError):
        raise PublishFailed(f"{request}: the answer is not Grafana's JSON; is this a Grafana?") from None
    except OSError as error:
        response = getattr(error, "response", None)
        elsewhere = None if response is None else response.headers.get("Location")
        if elsewhere is not None:
            raise PublishFailed(f"{request}: it redirects to {elsewhere}; push to that address") from None
        raise PublishFailed(f"{request}: no answer ({_reason(error)}); is it running there?") from None


def _reason(error: OSError) -> str:
    """Return the innermost cause in words: requests wraps it in many classes of its own."""
    cause: BaseException = error
    while (inner := cause.__context__ or cause.__cause__) is not None:
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return "it took too long" if isinstance(cause, TimeoutError) else "the connection broke"
