"""Hostile command lines of `observatory dashboards`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_LOOKS = "it looks like http://host:3000 or https://host/grafana"
_PROMETHEUS = "it looks like http://host:9090 or https://host/prometheus"
_PUSH = "dashboards push --url http://127.0.0.1:1"

LINES = (
    Line("dashboards rendr", 2, "Did you mean 'render'?"),
    Line("dashboards pull", 2, "No such command 'pull'"),
    Line("dashboards --check", 2, "No such option '--check'"),
    Line("dashboards render x", 2, "unexpected extra argument (x)"),
    Line("dashboards render --into missing", 2, "Directory 'missing' does not exist"),
    Line("dashboards render --into ''", 2, "it is empty; name a folder"),
    Line("dashboards render --into garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("dashboards render --into loop", 2, "Directory 'loop' does not exist"),
    Line("dashboards render --check --into folder", 2, "rendered files are stale", before=7),
    Line("dashboards render --check --thresholds missing", 2, "File 'missing' does not exist"),
    Line("dashboards render --check --thresholds ''", 2, "it is empty; name a file"),
    Line("dashboards render --check --thresholds folder", 2, "File 'folder' is a directory"),
    Line("dashboards render --check --thresholds garbage.json", 2, "garbage.json is no TOML"),
    Line("dashboards render --check --thresholds zero.json", 2, "it goes on beyond 64 MiB"),
    Line("dashboards render --check --thresholds misspelt.toml", 2, "misspelt.toml: imag is unknown; it may be"),
    Line("dashboards render --check --thresholds levels.toml", 2, 'strategy "dpp" is unknown; did you mean "ddp"?'),
    Line("dashboards push", 2, "Missing option '--url'"),
    Line("dashboards push --url", 2, "requires an argument"),
    Line("dashboards push --url ''", 2, _LOOKS),
    Line("dashboards push --url notaurl", 2, f'the Grafana\'s address is "notaurl"; {_LOOKS}'),
    Line("dashboards push --url ftp://host", 2, _LOOKS),
    Line("dashboards push --url http://", 2, _LOOKS),
    Line("dashboards push --url http://host:99999", 2, "Port out of range 0-65535"),
    Line("dashboards push --url http://host:x", 2, "cannot be read"),
    Line("dashboards push --url http://[::1", 2, "cannot be read"),
    Line("dashboards push --url http://a..b", 2, "has no name of a machine"),
    Line(f"dashboards push --url http://{'a' * 70}", 2, "has no name of a machine"),
    Line("dashboards push --url http://\udcff", 2, "has no name of a machine"),
    Line("dashboards push --url \x1b[31m", 2, 'address is "[31m"'),
    Line("dashboards push --url http://me:hunter2@host", 2, "holds a user; leave it out"),
    Line("dashboards push --url 'http://host?orgId=1'", 2, _LOOKS),
    Line("dashboards push --url http://127.0.0.1:1", 4, "no answer (connection refused); is it running there?"),
    Line(f"{_PUSH} --prometheus ''", 2, _PROMETHEUS),
    Line(f"{_PUSH} --prometheus 'not a url'", 2, f'the Prometheus\'s address is "not a url"; {_PROMETHEUS}'),
    Line(f"{_PUSH} --prometheus host:9090", 2, _PROMETHEUS),
    Line(f"{_PUSH} --prometheus http://host:99999", 2, "Port out of range 0-65535"),
    Line(f"{_PUSH} --prometheus http://a..b", 2, "has no name of a machine"),
    Line(f"{_PUSH} --prometheus \x1b[31m", 2, 'address is "[31m"'),
    Line(f"{_PUSH} x", 2, "unexpected extra argument (x)"),
)
