"""A request is answered compressed where that is accepted, alone by its headers, from /, or told what would be."""

from __future__ import annotations

import gzip
import http.client
from email.message import Message
from html.parser import HTMLParser

import pytest

from collectors.prometheus.http_answers import (
    WORTH_COMPRESSING_BYTES,
    Answer,
    Pages,
    accepts_gzip,
    answer,
    landing_page,
)
from collectors.prometheus.http_server import ServerConfig
from tests.collectors.knocking import serving

LARGE = b"observatory_step_seconds 0.25\n" * 1000
METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MKCOL")


class LargePage:
    """Worth to be compressed."""

    def __init__(self, body: bytes = LARGE) -> None:
        self._body = body

    def render(self, accept: str) -> tuple[bytes, str]:
        return self._body, "text/x-page"


class Links(HTMLParser):
    """Collects where a page's links lead, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str | None] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data


def _ask(
    port: int, method: str, path: str = "/metrics", headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def _answered(body: bytes, accept_encoding: str) -> Answer:
    headers = Message()
    headers["Accept-Encoding"] = accept_encoding
    return answer(Pages(metrics=LargePage(body)), lambda given: True, "/metrics", headers)


@pytest.mark.parametrize(
    ("accept_encoding", "is_accepted"),
    [
        ("", False),
        ("gzip", True),
        ("x-gzip", True),
        ("GZIP ; Q=0.5", True),
        ("deflate, gzip;q=1.0, *;q=0", True),
        ("*", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("*;q=0", False),
        ("gzip;q=much", False),
        ("gzip;q=nan", False),
        ("gzip;q", False),
        (";;,=,;q=1", False),
    ],
)
def test_gzip_is_accepted_where_its_weight_is_above_none(accept_encoding: str, is_accepted: bool) -> None:
    assert accepts_gzip(accept_encoding) == is_accepted


def test_a_page_is_compressed_for_who_accepts_that_and_is_the_same_page() -> None:
    compressed, plain = _answered(LARGE, "gzip"), _answered(LARGE, "br")
    assert (compressed.headers["Content-Encoding"], gzip.decompress(compressed.body)) == ("gzip", LARGE)
    assert ("Content-Encoding" in plain.headers, plain.body) == (False, LARGE)
    assert compressed.headers["Vary"] == plain.headers["Vary"] == "Accept, Accept-Encoding"


def test_a_page_that_fits_into_a_packet_is_not_compressed() -> None:
    worth = b"x" * WORTH_COMPRESSING_BYTES
    assert _answered(worth[1:], "gzip").body == worth[1:]
    assert gzip.decompress(_answered(worth, "gzip").body) == worth


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/", "/none"])
@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_the_headers_of_an_answer_can_be_asked_for_alone(path: str, coding: str) -> None:
    with serving(LargePage()) as (server, _):
        status, headers, body = _ask(server.port, "HEAD", path, {"Accept-Encoding": coding})
        whole_status, whole_headers, whole = _ask(server.port, "GET", path, {"Accept-Encoding": coding})
    assert body == b""
    assert headers["Content-Length"] == str(len(whole))
    del headers["Date"], whole_headers["Date"]
    assert (status, headers.items()) == (whole_status, whole_headers.items())


@pytest.mark.parametrize("method", METHODS)
def test_another_method_is_told_which_are_allowed(method: str) -> None:
    with serving(config=ServerConfig(headers={"X-Frame-Options": "deny"})) as (server, _):
        status, headers, body = _ask(server.port, method)
    assert (status, headers["Allow"], body) == (405, "GET, HEAD", b"the methods are GET, HEAD\n")
    assert headers["X-Frame-Options"] == "deny"


def test_the_landing_page_is_behind_the_same_password() -> None:
    with serving(config=ServerConfig(admits=lambda given: given == "right")) as (server, _):
        refused = _ask(server.port, "GET", "/")
        admitted = _ask(server.port, "GET", "/", {"Authorization": "right"})
    assert (refused[0], b"landed" in refused[2]) == (401, False)
    assert (admitted[0], admitted[1]["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert admitted[2] == b"<p>landed</p>"


def test_the_landing_page_leads_to_the_pages_and_is_no_program() -> None:
    page = Links(landing_page("1.2.3"))
    assert page.links == ["metrics", "healthz"]
    assert "Version 1.2.3." in page.text
    assert "script" not in page.tags


def test_what_stands_in_the_landing_page_is_text_and_no_html() -> None:
    page = Links(landing_page("<script>&amp;"))
    assert "script" not in page.tags
    assert "Version <script>&amp;." in page.text


def test_without_a_landing_page_the_others_are_named() -> None:
    found = answer(Pages(metrics=LargePage()), lambda given: True, "/", Message())
    assert (found.status, found.body) == (404, b"there is no such page; there are /metrics and /healthz\n")
