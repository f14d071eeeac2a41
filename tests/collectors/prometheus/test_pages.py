"""The pages: /metrics in the format and the coding that are asked for, /healthz, and one that leads to both."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from collectors.prometheus.http_server import ServerConfig, landing_page, pages
from tests.collectors.knocking import get, serving

METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MKCOL")
BODY = b"# HELP x_seconds A time.\n# TYPE x_seconds gauge\nx_seconds 0.25\n"


class OneGauge(Collector):
    """Shows a gauge."""

    def collect(self) -> Iterator[Family]:
        family = Family("x_seconds", "A time.", "gauge")
        family.add_sample("x_seconds", {}, 0.25)
        yield family


APP = pages(OneGauge(), "<p>landed</p>")


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


def test_the_metrics_are_text_for_who_asks_for_nothing_else() -> None:
    with serving(APP) as (server, _):
        for path in ("/metrics", "/metrics?x=1", "/metrics?name[]=y"):
            status, headers, body = get(server.port, path)
            assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert body.encode() == BODY


def test_the_server_says_that_it_lives_and_which_pages_it_has() -> None:
    with serving(APP) as (server, _):
        assert get(server.port, "/healthz")[::2] == (200, "ok\n")
        assert get(server.port, "/metric")[::2] == (404, "no such page; this server has /, /metrics and /healthz\n")
    with serving(pages(OneGauge())) as (server, _):
        assert get(server.port, "/")[::2] == (404, "no such page; this server has /metrics and /healthz\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/", "/none"])
def test_the_headers_of_an_answer_can_be_asked_for_alone(path: str) -> None:
    with serving(APP) as (server, _):
        status, headers, body = _ask(server.port, "HEAD", path)
        whole_status, whole_headers, whole = _ask(server.port, "GET", path)
    assert body == b""
    assert headers["Content-Length"] == str(len(whole))
    del headers["Date"], whole_headers["Date"]
    assert (status, headers.items()) == (whole_status, whole_headers.items())


@pytest.mark.parametrize("method", METHODS)
def test_another_method_is_refused_and_shows_nothing(method: str) -> None:
    with serving(APP, config=ServerConfig(headers={"X-Frame-Options": "deny"})) as (server, _):
        status, headers, body = _ask(server.port, method)
    assert (status, headers["X-Frame-Options"], b"x_seconds" in body) == (501, "deny", False)


def test_only_who_is_admitted_sees_a_page_but_that_of_health() -> None:
    with serving(APP, config=ServerConfig(admits=lambda given: given == "Basic right")) as (server, _):
        for path in ("/metrics", "/", "/nowhere"):
            for wrong in ("", "Basic wrong"):
                status, headers, body = get(server.port, path, authorization=wrong)
                assert (status, headers["WWW-Authenticate"]) == (401, "Basic")
                assert body == "a user name and a password are required\n"
        assert get(server.port, authorization="Basic right")[2].encode() == BODY
        assert get(server.port, "/", authorization="Basic right")[2] == "<p>landed</p>"
        assert get(server.port, "/healthz")[::2] == (200, "ok\n")


def test_a_variable_of_the_process_is_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_AUTHORIZATION", "Basic right")
    with serving(APP, config=ServerConfig(admits=lambda given: given == "Basic right")) as (server, _):
        assert _ask(server.port, "GET")[0] == 401


def test_the_landing_page_leads_to_the_pages_and_is_no_program() -> None:
    page = Links(landing_page("1.2.3"))
    assert page.links == ["metrics", "healthz"]
    assert "Version 1.2.3." in page.text
    assert "script" not in page.tags


def test_what_stands_in_the_landing_page_is_text_and_no_html() -> None:
    page = Links(landing_page("<script>&amp;"))
    assert "script" not in page.tags
    assert "Version <script>&amp;." in page.text
