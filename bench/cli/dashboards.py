"""`observatory dashboards`: renders dashboards and rules, and pushes the dashboards to a Grafana."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.options import NamedPath
from bench.errors import InfrastructureFailed, Misuse, say

if TYPE_CHECKING:
    from dashboards.thresholds import Thresholds


@click.group(name="dashboards")
def command() -> None:
    """Grafana's dashboards and Prometheus' rules, as code.

    \b
    Example:
      observatory dashboards render --check
    """


@command.command(name="render")
@click.option("--check", is_flag=True, help="Write nothing; name each file that is out of date.")
@click.option(
    "--into",
    "root",
    type=NamedPath(is_folder=True, exists=True),
    show_default="the repository",
    help="Folder of a checkout: dashboards/rendered/ and docs/metrics.md are in it.",
)
@click.option(
    "--thresholds",
    "thresholds_file",
    type=NamedPath(is_folder=False, exists=True),
    show_default="the shipped dashboards/thresholds.toml",
    help="TOML file with the thresholds of the alerts that shall differ from the shipped ones.",
)
def render(check: bool, root: Path | None, thresholds_file: Path | None) -> None:
    """Write dashboards, rules and the page of metrics, from the catalogue and the thresholds of the alerts.

    Wants Grafana's SDK: pip install 'parallel-observatory[dashboards]'.

    \b
    Example:
      observatory dashboards render --check
    """
    from dashboards import render as rendering
    from dashboards.grafana import SdkMissing

    root = root or rendering.CHECKOUT
    thresholds = None if thresholds_file is None else _read_thresholds(thresholds_file)
    try:
        paths = rendering.stale(root, rendering.render(thresholds)) if check else rendering.write(root, thresholds)
    except SdkMissing as error:
        raise Misuse(str(error)) from None
    except OSError as error:
        raise InfrastructureFailed(f"{error.filename}: {error.strerror}; rendered files cannot be written") from None
    if not check:
        for path in paths:
            click.echo(path)
        return
    for path in paths:
        say(f"{path} is not what the catalogue gives")
    if paths:
        raise Misuse(f"rendered files are stale ({len(paths)}); `observatory dashboards render` writes them")


def _read_thresholds(path: Path) -> Thresholds:
    """Return the thresholds of a user's file; its strategies are known ones."""
    from bench.case import find_spec
    from bench.runs.files import read_small
    from dashboards.thresholds import BadThresholds, changed_by

    try:
        thresholds = changed_by(read_small(path), str(path))
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}; name a file of thresholds, in TOML (docs/watching.md)") from None
    except BadThresholds as error:
        raise Misuse(f"{error} (docs/watching.md)") from None
    named = [("accepted_efficiency", entry.strategy) for entry in thresholds.accepted_efficiency]
    for key, strategy in (*named, *(("live.uneven_strategies", name) for name in thresholds.live.uneven_strategies)):
        try:
            find_spec(strategy)
        except Misuse as error:
            raise Misuse(f"{path}: {key}: {error}") from None
    return thresholds


@command.command(name="push")
@click.option("--url", required=True, metavar="URL", help="The Grafana, such as http://localhost:3000.")
@click.option(
    "--prometheus",
    "prometheus_url",
    metavar="URL",
    default="http://localhost:9090",
    show_default=True,
    help="The Prometheus, as Grafana reaches it.",
)
def push(url: str, prometheus_url: str) -> None:
    """Push folder, data source and dashboards to a Grafana; the token is read from GRAFANA_TOKEN.

    It gives up where a request has no complete answer within 60 s.

    \b
    Example:
      observatory dashboards push --url http://localhost:3000
    """
    from dashboards.publish import PublishFailed, check_prometheus, parse_address, publish, read_rendered

    token = os.environ.get("GRAFANA_TOKEN", "").strip()
    if not token:
        raise Misuse("GRAFANA_TOKEN is not set; put a Grafana service account's token into this environment variable")
    if not (token.isascii() and token.isprintable()):
        raise Misuse("GRAFANA_TOKEN holds a character that no token has; was it copied whole, and nothing beside it?")
    try:
        address = parse_address(url)
        check_prometheus(prometheus_url)
    except ValueError as error:
        raise Misuse(str(error)) from None
    try:
        for published in publish(address, token, prometheus_url, read_rendered()):
            click.echo(f"{published.what}: {published.change}")
    except PublishFailed as error:
        raise InfrastructureFailed(str(error)) from None
