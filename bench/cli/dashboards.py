"""`observatory dashboards`: renders dashboards and rules, and pushes the dashboards to a Grafana."""

from __future__ import annotations

import os
from pathlib import Path

import click

from bench.cli.options import NamedPath
from bench.errors import InfrastructureFailed, Misuse, say


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
def render(check: bool, root: Path | None) -> None:
    """Write dashboards, rules and the page of metrics, from the catalogue.

    Wants Grafana's SDK: pip install 'parallel-observatory[dashboards]'.

    \b
    Example:
      observatory dashboards render --check
    """
    from dashboards import render as rendering
    from dashboards.grafana import SdkMissing

    root = root or rendering.CHECKOUT
    try:
        paths = rendering.stale(root, rendering.render()) if check else rendering.write(root)
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
