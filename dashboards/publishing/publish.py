"""Publishes folder, data source, dashboards and alerts to a Grafana, and changes only what differs.

Uses grafana-api, which is archived; every failure of it or of the server becomes a `PublishFailed`. publishing/plan.py
plans the steps, by reading only.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dashboards.publishing.answers import Ask, NotThere, PublishFailed
from dashboards.publishing.plan import Step, Wanted, plan

RENDERED = Path(__file__).parents[1] / "rendered"

_TIMEOUT_S = 30.0
"""How long a server may be silent."""
REQUEST_S = 60.0
"""How long one request may take in all, even while the server sends something."""
_ANSWER_LETTERS = 200
_ADVICE = {
    401: "the token in GRAFANA_TOKEN is not valid there",
    403: "the token's account may not do that; it needs the role Editor, and Admin for the data source"
    " and for alerts; with --data-source an Editor takes one that exists",
    404: "is this a Grafana, and does its address need a path?",
    409: "something else there has that name; rename that, or take it with --folder or --data-source",
    412: "somebody changed it meanwhile, or something else has that name; look there, then push again",
}

_LOGIN_WORDS = frozenset({"login", "signin", "sso", "oauth", "oauth2", "auth", "authorize", "saml"})
"""Words in the address of a login page."""


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
        ValueError: it is not an http or https address, or has a user, a password, a query or a fragment.
    """
    parts = _split(url, "Grafana", "http://host:3000 or https://host/grafana")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the Grafana's address has a user name; leave it out and put a token into GRAFANA_TOKEN")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    path = parts.path.strip("/")
    return Address(protocol=parts.scheme, host=host, port=parts.port, prefix=f"{path}/" if path else "")


def check_prometheus(url: str) -> None:
    """Check that Grafana could ask a Prometheus at this address.

    Raises:
        ValueError: it is not an http or https address, or has a query or a fragment.
    """
    _split(url, "Prometheus", "http://host:9090 or https://host/prometheus")


def _split(url: str, whose: str, looks: str) -> SplitResult:
    """Return the parts of a server's URL, each checked."""
    try:
        parts = urlsplit(url)
        assert parts.port is None or parts.port >= 0, "reading it refuses a port that is no number"
        (parts.hostname or "").encode("idna")
    except UnicodeError:  # A part of the host's name is empty, or longer than 63.
        raise ValueError(f"the {whose}'s address has no valid host name; it looks like {looks}") from None
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
    wanted: Wanted,
    *,
    is_dry_run: bool = False,
    request_s: float = REQUEST_S,
) -> Iterator[Step]:
    """Bring a Grafana to the wanted state, one object after the other, and yield each step.

    is_dry_run: only read, and yield what each step would do. request_s: see REQUEST_S.

    Raises:
        PushRefused: others' changes would be undone; nothing was written.
        PublishFailed: earlier steps remain; another push continues from there.
    """
    ask = _connected(address, token, request_s)
    planned = plan(ask, wanted)
    if is_dry_run:
        yield from planned.steps
    planned.check()
    if is_dry_run:
        return
    for step in planned.steps:
        if step.request is not None:
            with _of(step):
                ask(*step.request)
                if step.cleaning is not None:
                    ask(*step.cleaning)
        yield step


@contextmanager
def _of(step: Step) -> Iterator[None]:
    """Add to a failure what was being written, and what to do if it is provisioned from a file."""
    try:
        yield
    except PublishFailed as error:
        is_provisioned = error.status == 400 and "provisioned" in str(error)
        advice = (
            "; it is provisioned from a file of that Grafana, which no push changes: put the rendered file there, or"
            " take it out of the provisioning and push again, which continues from here"
        )
        raise PublishFailed(f"{step.what}: {error}{advice if is_provisioned else ''}", status=error.status) from None


def _connected(address: Address, token: str, request_s: float) -> Ask:
    from grafana_api.grafana_face import GrafanaFace

    def client() -> Any:
        face = GrafanaFace(
            auth=token,
            host=address.host,
            port=address.port,
            url_path_prefix=address.prefix,
            protocol=address.protocol,
            timeout=_TIMEOUT_S,
        )
        face.api.s.max_redirects = 0  # A redirected POST would become a GET, and look like a success.
        return face.api

    api, newer = client(), client()
    newer.url = newer.url.removesuffix("/api")  # The newer APIs are at /apis/..., not below /api.

    def send(verb: str, path: str, body: dict[str, Any] | None) -> Any:
        at = newer if path.startswith("/apis/") else api
        request = f"{verb} {at.url}{path}"
        with _errors_in_words(request, token):
            answers, is_whole = _within(request_s, lambda: getattr(at, verb)(path, json=body))
        if not is_whole:
            raise PublishFailed(
                f"{request}: no complete answer within {request_s:g} s; is it, or a proxy before it, overloaded?"
            )
        return answers

    return Ask(url=api.url, send=send)


def _within(limit_s: float, question: Callable[[], Any]) -> tuple[Any, bool]:
    """Return the call's result, and whether it came in this time; raise what the call raises.

    The client's own limit restarts with each byte. A late thread is abandoned, and ends with the program.
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


@contextmanager
def _errors_in_words(request: str, token: str) -> Iterator[None]:
    """Turn each failure of a request into one line that names its kind, without the token.

    The client reads `message` from any error body; a plain text with that word in it, or a body that is not an object,
    makes it raise TypeError. All errors of requests are OSErrors; for an answer that is not JSON, the error is also a
    JSONDecodeError.
    """
    from grafana_api.grafana_api import GrafanaException

    try:
        yield
    except GrafanaException as error:
        is_grafanas = isinstance(error.response, dict) and "message" in error.response
        reason = error.response["message"] if is_grafanas else error.response
        answer = " ".join(str(reason).split()).replace(token, "...")[:_ANSWER_LETTERS]
        advice = _ADVICE.get(error.status_code)
        line = f"{request}: status {error.status_code}: {answer}" + (f"; {advice}" if advice else "")
        if error.status_code == 404 and is_grafanas:
            raise NotThere(line, status=404) from None
        raise PublishFailed(line, status=error.status_code) from None
    except (json.JSONDecodeError, TypeError):
        raise PublishFailed(f"{request}: the answer is not Grafana's JSON; is this a Grafana?") from None
    except OSError as error:
        response = getattr(error, "response", None)
        elsewhere = None if response is None else response.headers.get("Location")
        if elsewhere is not None:
            raise PublishFailed(f"{request}: it redirects to {elsewhere}; {_redirected(elsewhere)}") from None
        raise PublishFailed(f"{request}: no answer ({_reason(error)}); is it running there?") from None


def _redirected(elsewhere: str) -> str:
    """Return what to do if a server redirects to this address."""
    words = re.split(r"[^a-z0-9]+", elsewhere.lower())
    if _LOGIN_WORDS.isdisjoint(words):
        return "push to that address"
    return (
        "that is a login page, which accepts no token: is GRAFANA_TOKEN a service account's of this Grafana,"
        " and --url the Grafana's own address, not that of a proxy before it?"
    )


def _reason(error: OSError) -> str:
    """Return the innermost cause in words: requests wraps it in many classes of its own."""
    cause: BaseException = error
    while (inner := cause.__context__ or cause.__cause__) is not None:
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return "it took too long" if isinstance(cause, TimeoutError) else "the connection broke"
