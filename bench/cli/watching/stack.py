"""`observatory stack`: start Prometheus, Alertmanager and Grafana on this machine, show them, and stop them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.options import FORMAT, RUNS, STORE, NamedPath, NamedText, OfferingGroup
from bench.errors import INFRASTRUCTURE, Misuse, interrupt_in_order, say
from bench.store.files import RUNS_VARIABLE, STORE_VARIABLE, data_folder

if TYPE_CHECKING:
    from bench.report.table import Table
    from bench.serve.stack.coverage import Target
    from bench.serve.stack.lifecycle import StackPlan, StackState

SCHEMA_VERSION = 1
_DISCOVERY_S, _SCRAPE_TIMEOUT_S = 10, 10
"""Longest time that Prometheus takes to read its target files, and to scrape one target."""
_FOLDER = click.option(
    "--folder",
    type=NamedPath(is_folder=True),
    default=lambda: data_folder() / "stack",
    show_default="stack in the user's data folder",
    help="Folder of the stack: its data, logs and settings.",
)


@click.group(name="stack", cls=OfferingGroup)
def command() -> None:
    """Start Prometheus, Alertmanager and Grafana with our alerts and dashboards.

    \b
    Example:
      observatory stack up --demo
    """


@command.command(name="up")
@click.option("--agent", "has_agent", is_flag=True, help="Also watch this node, its runs and results.")
@click.option("--demo", "has_demo", is_flag=True, help="Also show recorded GPUs and made-up runs and suites.")
@click.option(
    "--targets",
    "target_folders",
    metavar="FOLDER",
    type=NamedPath(is_folder=True),
    multiple=True,
    help="Folder of other nodes' targets, which `observatory serve --targets FOLDER` fills. Repeatable.",
)
@click.option(
    "--config",
    "config_file",
    type=NamedPath(is_folder=False),
    show_default="the values of dashboards/stack/stack.toml",
    help="TOML file with the ports, intervals and retention to change.",
)
@_FOLDER
@RUNS
@STORE
def up(
    has_agent: bool,
    has_demo: bool,
    target_folders: tuple[Path, ...],
    config_file: Path | None,
    folder: Path,
    runs_folder: Path,
    store_url: str | None,
) -> None:
    """Start Prometheus, Alertmanager and Grafana on this machine, and show their addresses.

    Runs the installed programs, or containers if Prometheus or Alertmanager is not installed. The servers keep running
    when the terminal closes and listen on the loopback address only. `observatory stack down` removes all of it.

    \b
    Example:
      observatory stack up --demo
    """
    from bench.engines.settings_file import read_settings
    from bench.serve.service_discovery import check_targets_folder
    from bench.serve.stack import lifecycle
    from bench.serve.stack.settings import StackSettings, check

    settings = read_settings(config_file, StackSettings)
    check(settings, str(config_file or "stack.toml"))
    for path in target_folders:
        check_targets_folder(path)
        if not path.exists():
            say(
                f"{path} does not exist yet; none of its nodes is watched until `observatory serve --targets {path}`"
                " makes it"
            )
    # Not on the agent's command line: other users can read that.
    environment = {RUNS_VARIABLE: str(runs_folder.absolute()), **({STORE_VARIABLE: store_url} if store_url else {})}
    plan = lifecycle.StackPlan(
        folder=folder.absolute(),
        settings=settings,
        has_agent=has_agent,
        has_demo=has_demo,
        target_folders=target_folders,
        agent_environment=environment,
    )
    interrupt_in_order("")
    state = lifecycle.up(plan, lifecycle.installed(), on_notice=say)
    try:
        _say_what_is_up(state, plan)
    except KeyboardInterrupt:
        say("the stack keeps running; `observatory stack status` shows its targets, and `down` ends it")
        raise


def _say_what_is_up(state: StackState, plan: StackPlan) -> None:
    """Print the servers, and the targets once all have been scraped."""
    from bench.report.table import print_page
    from bench.serve.stack import lifecycle, passwords
    from bench.serve.stack.coverage import targets_once_scraped
    from bench.serve.stack.files import LOOPBACK

    print_page(_server_table(_server_rows(state)))
    if "grafana" not in state.urls:
        click.echo(
            "grafana is not installed, so nothing draws the dashboards: install it and start the stack again, or send"
            " them to another Grafana with `observatory dashboards push --url URL`"
        )
    click.echo(f"alerts are shown at {state.urls['alertmanager']} and sent to nobody: docs/monitoring/stack.md")
    click.echo(
        f"passwords: in {plan.folder / passwords.FOLDER}; log in as {passwords.USER}, or to change Grafana as admin"
    )
    click.echo(f"files: {plan.folder}; `observatory stack down` ends the servers and deletes the folder")
    if not (plan.has_agent or plan.has_demo or plan.target_folders):
        say(
            "nothing is watched yet: --agent watches this node, --demo shows made-up data, --targets FOLDER other nodes"
        )
        return
    wait_s = _DISCOVERY_S + plan.settings.prometheus.scrape_seconds + _SCRAPE_TIMEOUT_S
    say(f"waiting until each target was scraped, {wait_s} s at most")
    own = [f"{LOOPBACK}:{port}" for port in plan.agents.values()]
    password = lifecycle.prometheus_password(plan.folder, state)
    targets = targets_once_scraped(state.prometheus_url, own, password=password, limit_s=wait_s)
    print_page(_target_table(targets))
    for target in targets:
        if target.missing is not None:
            say(target.missing)


@command.command(name="down")
@click.option("--keep-data", "keeps_data", is_flag=True, help="Keep the servers' data for the next `up`.")
@_FOLDER
def down(keeps_data: bool, folder: Path) -> None:
    """Stop what `stack up` started, and delete all that it made, Prometheus's data included.

    \b
    Example:
      observatory stack down --keep-data
    """
    from bench.serve.stack import lifecycle

    lifecycle.down(folder.absolute(), keeps_data=keeps_data, on_notice=say)


@command.command(name="status")
@click.option(
    "--prometheus",
    "prometheus_url",
    metavar="URL",
    type=NamedText(),
    show_default="the stack's own",
    help="Prometheus to query for our series.",
)
@_FOLDER
@FORMAT
def status(prometheus_url: str | None, folder: Path, format_name: str) -> int | None:
    """Show which servers run and which targets serve our series; exit with 4 if something is missing.

    \b
    Example:
      observatory stack status --prometheus http://127.0.0.1:9090
    """
    from bench.report.table import write
    from bench.serve.stack import lifecycle
    from bench.serve.stack.coverage import left_out, of_ours, targets_of

    folder = folder.absolute()
    own = lifecycle.read_state(folder)
    state = None
    problems: list[str] = []
    if prometheus_url is None:
        state = own
        if state is None:
            raise Misuse(lifecycle.nothing_is_up(folder))
        problems = [
            f"{lifecycle.words_of(process)} has ended; its last lines are in {process.log}"
            for process in lifecycle.ended(state)
        ]
        prometheus_url = state.prometheus_url
    is_asked = not any(problem.startswith("prometheus ") for problem in problems)
    password = None
    if is_asked and own is not None and prometheus_url.rstrip("/") == own.prometheus_url:
        password = lifecycle.prometheus_password(folder, own)
    every = targets_of(prometheus_url, password) if is_asked else []
    targets = of_ours(every)
    if is_asked and not targets:
        problems.append(
            f"{prometheus_url} has no target; `observatory stack up` takes --agent, --demo and --targets FOLDER"
        )
    problems += [target.missing for target in targets if target.missing is not None]
    servers = [] if state is None else _server_rows(state)
    rows = [
        {
            "target": target.address,
            "job": target.job,
            "health": target.health,
            "series": target.series,
            "missing": target.missing,
        }
        for target in targets
    ]
    write(
        format_name,
        [*_server_table(servers), *_target_table(targets)],
        lambda: {
            "schema_version": SCHEMA_VERSION,
            "servers": servers,
            "targets": rows,
            "problems": problems,
        },
        rows,
        _TARGET_COLUMNS,
    )
    for line in (*left_out(every), *problems):
        say(line)
    return INFRASTRUCTURE if problems else None


def _server_rows(state: StackState) -> list[dict[str, Any]]:
    """Return name, address, process and state of each server; for a container, only Docker knows the state."""
    from bench.serve.stack.lifecycle import ended

    pids = {process.name: process.pid for process in state.processes}
    gone = {process.name for process in ended(state)}
    return [
        {
            "server": name,
            "url": url,
            "process": pids.get(name),
            "state": "ended" if name in gone else "runs" if name in pids else "not known",
        }
        for name, url in state.urls.items()
    ]


def _server_table(rows: Sequence[dict[str, Any]]) -> list[Table]:
    from bench.report.table import Table

    cells = [
        (row["server"], row["url"], "container" if row["process"] is None else str(row["process"]), row["state"])
        for row in rows
    ]
    return [Table(("server", "address", "process", "state"), cells, words=(0, 1, 3))] if cells else []


_TARGET_COLUMNS = ("target", "job", "health", "series", "missing")


def _target_table(targets: Sequence[Target]) -> list[Table]:
    from bench.report.table import Table

    cells = [(target.address, target.job, target.health, f"{target.series:,}") for target in targets]
    return [Table(_TARGET_COLUMNS[:-1], cells, words=(0, 1, 2))] if cells else []
