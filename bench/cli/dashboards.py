"""`observatory dashboards`: renders dashboards and rules, and pushes dashboards to a Grafana."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.options import NamedPath, OfferingGroup
from bench.errors import InfrastructureFailed, Misuse, say

if TYPE_CHECKING:
    from dashboards.rules import Group
    from dashboards.thresholds import Thresholds


_LABEL_KEY = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def _labels(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Parse Kubernetes labels, by key; refuse anything else."""
    labels = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or _LABEL_KEY.fullmatch(key) is None or _LABEL_VALUE.fullmatch(value) is None:
            raise click.BadParameter(f"{word!r} is not a Kubernetes label; use for example release=prometheus")
        labels[key] = value
    return labels


@click.group(name="dashboards", cls=OfferingGroup)
def command() -> None:
    """Render Grafana's dashboards and Prometheus's rules, or push them to a Grafana.

    \b
    Example:
      observatory dashboards render --check
    """


@command.command(name="render")
@click.option("--check", is_flag=True, help="List the files that are out of date; write nothing.")
@click.option(
    "--into",
    "root",
    type=NamedPath(is_folder=True, exists=True),
    show_default="the checkout, where this program runs from one",
    help="Output folder, for dashboards/rendered/ and docs/metrics.md.",
)
@click.option(
    "--thresholds",
    "thresholds_file",
    type=NamedPath(is_folder=False, exists=True),
    show_default="the shipped dashboards/thresholds.toml",
    help="TOML file with the thresholds of alerts and panels that differ from the shipped ones.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["files", "kubernetes"]),
    default="files",
    show_default=True,
    help="Output format: files, or manifests for kubectl and the Prometheus operator on standard output.",
)
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_labels,
    help="With --as kubernetes: label of monitors and rules, by which an operator selects them. Repeatable.",
)
def render(check: bool, root: Path | None, thresholds_file: Path | None, form: str, labels: dict[str, str]) -> None:
    """Write dashboards, rules and the page of metrics, from boards, catalogue and thresholds.

    Deletes rendered dashboards that no board defines any more, and no other file.

    \b
    Example:
      observatory dashboards render --check
    """
    from dashboards import render as rendering
    from dashboards.board import BadBoard
    from dashboards.rules import BadRules

    if form == "kubernetes" and (check or root is not None):
        raise Misuse("--as kubernetes prints manifests and writes no file; leave out --check and --into")
    if form == "files" and labels:
        raise Misuse("--label is for manifests; add --as kubernetes")
    if form == "files" and root is None and not (rendering.CHECKOUT / "pyproject.toml").is_file():
        raise Misuse(
            "there is no checkout of the repository to write into, as this program is installed; name a folder with"
            " --into: the rules become dashboards/rendered/rules.yaml in it"
        )
    root = root or rendering.CHECKOUT
    thresholds = None if thresholds_file is None else _read_thresholds(thresholds_file)
    if form == "kubernetes":
        try:
            click.echo(rendering.kubernetes_text(thresholds, labels), nl=False)
        except (BadBoard, BadRules) as error:
            raise Misuse(str(error)) from None
        return
    try:
        paths = rendering.stale(root, rendering.render(thresholds)) if check else rendering.write(root, thresholds)
    except (BadBoard, BadRules, rendering.NotOurs) as error:
        raise Misuse(str(error)) from None
    except OSError as error:
        raise InfrastructureFailed(
            f"{error.filename or root}: {error.strerror}; rendered files cannot be written"
        ) from None
    if not check:
        for path in paths:
            click.echo(path if (root / path).is_file() else f"deleted {path}")
        return
    for path in paths:
        say(f"{path} is out of date")
    if paths:
        raise Misuse(f"rendered files are out of date ({len(paths)}); `observatory dashboards render` writes them")


def _read_thresholds(path: Path) -> Thresholds:
    """Read the thresholds in a user's file; refuse unknown strategies."""
    from bench.case import find_spec
    from collectors.settings_file import BadSettings, read_document
    from dashboards.thresholds import changed_by

    try:
        thresholds = changed_by(read_document(path), str(path))
    except BadSettings as error:
        raise Misuse(f"{error} (docs/monitoring/watching.md)") from None
    named = [("accepted_efficiency", entry.strategy) for entry in thresholds.accepted_efficiency]
    for key, strategy in (*named, *(("live.uneven_strategies", name) for name in thresholds.live.uneven_strategies)):
        try:
            find_spec(strategy)
        except Misuse as error:
            raise Misuse(f"{path}: {key}: {error}") from None
    return thresholds


@command.command(name="push")
@click.option("--url", required=True, metavar="URL", help="URL of the Grafana, for example http://localhost:3000.")
@click.option(
    "--prometheus",
    "prometheus_url",
    metavar="URL",
    show_default="the data source's; http://localhost:9090 for a new one",
    help="URL of the Prometheus, as Grafana reaches it.",
)
@click.option(
    "--scrape-interval",
    metavar="TIME",
    show_default="the data source's",
    help="Scrape interval of that Prometheus, for example 15s; panels compute rates over a multiple of it.",
)
@click.option(
    "--data-source",
    metavar="UID",
    show_default="our own, which is created if it does not exist",
    help="Existing Prometheus data source of this Grafana, left unchanged; an Editor's token is then enough.",
)
@click.option(
    "--folder",
    metavar="NAME",
    show_default="Parallel Observatory",
    help="UID or title of the folder, which is created if it does not exist.",
)
@click.option("--alerts", "with_alerts", is_flag=True, help="Also push the alerts, for Grafana to evaluate.")
@click.option(
    "--thresholds",
    "thresholds_file",
    type=NamedPath(is_folder=False, exists=True),
    show_default="the shipped dashboards/thresholds.toml",
    help="With --alerts: TOML file with the thresholds that differ from the shipped ones.",
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would change; write nothing.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite what a person changed since the last push.")
def push(
    url: str,
    prometheus_url: str | None,
    scrape_interval: str | None,
    data_source: str | None,
    folder: str | None,
    with_alerts: bool,
    thresholds_file: Path | None,
    is_dry_run: bool,
    is_forced: bool,
) -> None:
    """Push folder, data source and dashboards to a Grafana; the token is read from GRAFANA_TOKEN.

    The command fails if a request has no complete answer within 60 s.

    \b
    Example:
      observatory dashboards push --url http://localhost:3000
    """
    from dashboards.publishing.answers import PublishFailed, PushRefused
    from dashboards.publishing.plan import Wanted
    from dashboards.publishing.publish import check_prometheus, parse_address, publish, read_rendered

    token = os.environ.get("GRAFANA_TOKEN", "").strip()
    if not token:
        raise Misuse("GRAFANA_TOKEN is not set; put a Grafana service account's token into this environment variable")
    if not (token.isascii() and token.isprintable()):
        raise Misuse("GRAFANA_TOKEN holds a character that no token has; copy the whole token and nothing else")
    _check_push_options(scrape_interval, data_source, folder)
    if data_source is not None and (prometheus_url is not None or scrape_interval is not None):
        raise Misuse(
            "--data-source is left unchanged; leave out --prometheus and --scrape-interval, or set them in Grafana"
        )
    if thresholds_file is not None and not with_alerts:
        raise Misuse("--thresholds is for alerts; add --alerts, or leave --thresholds out")
    try:
        address = parse_address(url)
        if prometheus_url is not None:
            check_prometheus(prometheus_url)
    except ValueError as error:
        raise Misuse(str(error)) from None
    wanted = Wanted(
        dashboards=read_rendered(),
        prometheus_url=prometheus_url,
        scrape_interval=scrape_interval,
        folder=folder,
        data_source=data_source,
        alerts=_alerts(thresholds_file) if with_alerts else None,
        is_forced=is_forced,
    )
    try:
        for step in publish(address, token, wanted, is_dry_run=is_dry_run):
            is_change = is_dry_run and step.request is not None
            click.echo(f"{step.what}: {'would be ' if is_change else ''}{step.change}")
            for line in step.difference if is_dry_run else ():
                click.echo(f"  {line}")
    except PushRefused as refused:
        for reason in refused.reasons:
            say(reason)
        raise Misuse(f"nothing was pushed; each line above says why, and what to do ({len(refused.reasons)})") from None
    except PublishFailed as error:
        raise InfrastructureFailed(str(error)) from None


def _check_push_options(scrape_interval: str | None, data_source: str | None, folder: str | None) -> None:
    if scrape_interval is not None and not re.fullmatch(r"[1-9][0-9]{0,4}(ms|s|m|h)", scrape_interval):
        raise Misuse(f'--scrape-interval is "{scrape_interval}"; it looks like 15s or 1m')
    if data_source is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", data_source):
        raise Misuse(
            f'--data-source is "{data_source}"; a UID has up to 40 letters, digits, - and _ (it ends the address of the'
            " data source's settings in Grafana)"
        )
    if folder is not None and not (folder.strip() and folder.isprintable()):
        raise Misuse(f"--folder is {json.dumps(folder)}; name a folder's UID or title")


def _alerts(thresholds_file: Path | None) -> tuple[tuple[Group, ...], Thresholds]:
    """Return the groups of alerts and their thresholds; print which alerts Grafana cannot evaluate."""
    from dashboards import rules
    from dashboards.publishing.managed_alerts import left_out
    from dashboards.thresholds import shipped

    thresholds = shipped() if thresholds_file is None else _read_thresholds(thresholds_file)
    try:
        groups = rules.load(thresholds)
    except rules.BadRules as error:
        raise Misuse(str(error)) from None
    names = left_out(groups, thresholds.links)
    say(f"left to Prometheus, which records the series that they need: {', '.join(names)}")
    return groups, thresholds
