"""What the exporter answers to a request: /metrics, compressed on demand, /healthz, a landing page, or why not.

Knows neither sockets nor threads, no metric, no password and no file.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from html import escape
from typing import Protocol

GZIP_LEVEL = 1
"""Of the demonstration's 157 kB 25 kB are left, in 1.0 ms; level 6 leaves 21 kB and takes 2.9 ms."""
WORTH_COMPRESSING_BYTES = 1024
"""A body below this is one packet either way."""
METHODS = ("GET", "HEAD")

_TEXT = "text/plain; charset=utf-8"


class MetricsPage(Protocol):
    """The content of /metrics."""

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type, for a request with this Accept header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What is served. landing: HTML of /; without it / is not found."""

    metrics: MetricsPage
    landing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response to GET; to HEAD it is the same without the body."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(pages: Pages, admits: Callable[[str], bool], target: str, headers: Message) -> Answer:
    """Return the response to a GET of this target. admits: see `http_server.ServerConfig`; /healthz needs none."""
    page = target.partition("?")[0]
    if page == "/healthz":  # Without a password: what asks whether a process lives has none, and learns no more here.
        return Answer(status=200, body=b"ok\n")
    if not admits(headers.get("Authorization", "")):
        return Answer(
            status=401, body=b"a name and its password are asked for\n", headers={"WWW-Authenticate": "Basic"}
        )
    match page:
        case "/metrics":
            body, content_type = pages.metrics.render(headers.get("Accept", ""))
            negotiated = {"Vary": "Accept, Accept-Encoding"}
            if len(body) >= WORTH_COMPRESSING_BYTES and accepts_gzip(", ".join(headers.get_all("Accept-Encoding", []))):
                # Without a time, equal pages are equal bytes, and HEAD tells GET's length.
                body = gzip.compress(body, GZIP_LEVEL, mtime=0)
                negotiated["Content-Encoding"] = "gzip"
            return Answer(status=200, body=body, content_type=content_type, headers=negotiated)
        case "/" if pages.landing is not None:
            return Answer(status=200, body=pages.landing.encode(), content_type="text/html; charset=utf-8")
    also = "" if pages.landing is None else "/, "
    return Answer(status=404, body=f"there is no such page; there are {also}/metrics and /healthz\n".encode())


def refusal(status: int, reason: str) -> Answer:
    """Return the response to what is no request that can be answered."""
    if status == 501:  # http.server's answer to a method that it knows no function for.
        allowed = ", ".join(METHODS)
        return Answer(status=405, body=f"the methods are {allowed}\n".encode(), headers={"Allow": allowed})
    return Answer(status=status, body=f"{reason.lower()}\n".encode())


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an Accept-Encoding header lets a body be compressed by gzip.

    `gzip;q=0` forbids it, and so does a weight that is no number. Source: RFC 9110, section 12.5.3.
    """
    weights: dict[str, float] = {}
    for offer in accept_encoding.lower().split(","):
        coding, *parameters = (part.strip() for part in offer.split(";"))
        named = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            weights[coding] = float(named.get("q", "1"))
        except ValueError:
            weights[coding] = 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def landing_page(version: str) -> str:
    """Return the page of /: what this program is, and where its pages are.

    Its links to them are relative, and so hold behind a proxy that serves it under a path.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Parallel Observatory</title></head>
<body>
<h1>Parallel Observatory</h1>
<p>An exporter of distributed training, for Prometheus: GPUs, host, ranks of live runs, and results with intervals.
Version {escape(version)}. Its documentation is in the folder docs of the source, docs/watching.md on this page.</p>
<ul>
<li><a href="metrics">/metrics</a>: all metrics, as text or OpenMetrics</li>
<li><a href="healthz">/healthz</a>: "ok" while it serves</li>
</ul>
</body>
</html>
"""
