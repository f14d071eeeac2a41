"""`observatory serve`: serve /metrics for this node, its runs and its results until it is stopped."""

from __future__ import annotations

import ipaddress
import signal
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.options import OF_ALL_USERS, RUNS, STORE, NamedPath, NamedText, seconds_within
from bench.errors import Misuse, say
from collectors.dcgm import JobMapping, NoMapping

if TYPE_CHECKING:
    from bench.serve.server import Results
    from collectors.prometheus.http_server import ServerConfig

_LOOPBACK = "127.0.0.1"
_HEAR_S = 1.0
"""Longest delay until a signal takes effect if the kernel delivers it to another thread, as it may after a stop."""
_OF_DEMO = ("runs_folder", "of_all_users", "store_url", "mapping_folder", "results", "ranks")
"""Options that name the user's own data, none of which the demonstration shows."""
_OF_NODE = (
    "beat_s",
    "mapping_folder",
    "is_per_nvlink",
    "has_read_costs",
    "is_without_processes",
    "runs_folder",
    "of_all_users",
    "ranks",
)
"""Options of the node and its runs, which --results only does not show."""
LEAST_BEAT_S, MOST_BEAT_S = 0.1, 60.0
"""More often, NVML's averages would not have changed; less often, values would be too old to be live."""


@click.command(name="serve")
@click.option(
    "--host", type=NamedText(), default=_LOOPBACK, show_default=True, help="Address to listen on; 0.0.0.0 means all."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9464,
    show_default=True,
    help="Port to listen on; 0 selects a free port.",
)
@click.option(
    "--beat",
    "beat_s",
    metavar="SECONDS",
    type=float,
    default=1.0,
    show_default=True,
    callback=seconds_within(LEAST_BEAT_S, MOST_BEAT_S, "beat"),
    help="Time between two polls of this node's collectors; 0.1 or more.",
)
@click.option(
    "--job-mapping",
    "mapping_folder",
    type=NamedPath(is_folder=True),
    help="Folder of dcgm-exporter's --hpc-job-mapping-dir; it then labels its series with the run on each GPU.",
)
@click.option(
    "--web-config",
    "web_config",
    type=NamedPath(is_folder=False),
    help="TLS and passwords, in the file format of Prometheus's own exporters; lists of ciphers are refused.",
)
@click.option(
    "--targets",
    "targets_folder",
    metavar="FOLDER",
    type=NamedPath(is_folder=True),
    help="Folder of Prometheus's targets (file_sd); this node's file is there while the server runs.",
)
@click.option("--nvlink-per-link", "is_per_nvlink", is_flag=True, help="Also export the bytes of each NVLink.")
@click.option(
    "--no-processes", "is_without_processes", is_flag=True, help="Do not export what each process on a GPU uses."
)
@click.option(
    "--read-costs", "has_read_costs", is_flag=True, help="Also export how long reading each field of the GPUs takes."
)
@click.option(
    "--results",
    type=click.Choice(("all", "only", "none")),
    default="all",
    show_default=True,
    help="Exported results: the history and this node, the history only, or none of the history.",
)
@click.option(
    "--ranks",
    type=click.Choice(("all", "node")),
    default="all",
    show_default=True,
    help="Exported ranks of active runs: all with a log in the runs folder, or those on this node only.",
)
@click.option(
    "--demo", "is_demo", is_flag=True, help="Export recorded GPUs and made-up runs and suites, to try the dashboards."
)
@RUNS
@OF_ALL_USERS
@STORE
def command(
    host: str,
    port: int,
    beat_s: float,
    mapping_folder: Path | None,
    web_config: Path | None,
    targets_folder: Path | None,
    runs_folder: Path,
    store_url: str | None,
    results: Results,
    ranks: str,
    *,
    of_all_users: bool,
    is_per_nvlink: bool,
    has_read_costs: bool,
    is_without_processes: bool,
    is_demo: bool,
) -> None:
    """Serve /metrics of this node, its runs and results to Prometheus.

    Exports this node's GPUs and host, the active runs in the runs folder, and the newest results in the history. A
    scrape queries no driver: it returns the readings of the last beat. Press Ctrl-C to stop.

    \b
    Example:
      observatory serve --port 9464
    """
    from bench.serve.demo import open_demonstration
    from bench.serve.server import NodePlan, once, open_server
    from bench.serve.service_discovery import Target, listed, make_targets_folder, published_address
    from collectors.node.registry import PollingConfig
    from collectors.prometheus.http_server import ServerConfig

    if is_demo:
        _refuse_said(_OF_DEMO, "--demo shows nothing of yours; leave out {}, or --demo")
    if results == "only":
        _refuse_said(_OF_NODE, "--results only watches nothing of this node; leave out {}, or say --results all")
    if results == "none":
        _refuse_said(("store_url",), "--results none reads no history; leave out {}, or say --results all")
    if targets_folder is not None:
        _refuse_unreachable(host)
        make_targets_folder(targets_folder)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with ExitStack() as stack:
        config = ServerConfig if web_config is None else _guarded(web_config)
        polling = PollingConfig(
            beat_s=beat_s,
            per_nvlink=is_per_nvlink,
            read_costs=has_read_costs,
            per_process=not is_without_processes,
            folders=(runs_folder.absolute(),),
        )
        if is_demo:
            opening = open_demonstration(host=host, port=port, polling=polling, on_notice=say, config=config)
        else:
            mapping = None
            if mapping_folder is not None:
                try:
                    mapping = stack.enter_context(closing(JobMapping(mapping_folder)))
                except NoMapping as error:
                    raise Misuse(str(error)) from None
            node = NodePlan(polling=polling, mapping=mapping, of_all_users=of_all_users, is_own_ranks=ranks == "node")
            opening = open_server(
                runs_folder, store_url, host=host, port=port, on_notice=say, config=config, node=node, results=results
            )
        server = stack.enter_context(opening)
        admits, tls = config().admits, config().tls
        asks_who = admits is not None or (tls is not None and tls.verify_mode is ssl.CERT_REQUIRED)
        if not asks_who and not _is_loopback(host):
            say(f"anybody who reaches {host} can read /metrics; --web-config FILE has passwords and TLS")
        if targets_folder is not None:
            labels = {"__scheme__": server.url.partition(":")[0]}
            target = Target(targets_folder, published_address(host, server.port), labels)
            stack.enter_context(listed(target, on_notice=once(say)))
        while not ended.wait(_HEAR_S):
            pass


def _guarded(web_config: Path) -> Callable[[], ServerConfig]:
    from bench.serve.web_config import WebGuard
    from collectors.prometheus.http_server import ServerConfig

    try:
        config = WebGuard(web_config, on_notice=say).config
    except Misuse as error:
        raise Misuse(f"--web-config: {error}") from None
    if config() == ServerConfig():
        say(f"{web_config} sets nothing; without tls_server_config and basic_auth_users it has no effect")
    if config().admits is not None and config().tls is None:
        say(f"{web_config}: passwords cross the network in plain text; add a tls_server_config")
    return config


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_unreachable(host: str) -> None:
    """Refuse --targets with the default --host: each reader would reach itself at a loopback address."""
    source = click.get_current_context().get_parameter_source("host")
    if host == _LOOPBACK and source is not ParameterSource.COMMANDLINE:
        raise Misuse(
            f"--targets announces {host}, which other machines cannot reach; add --host 0.0.0.0, or"
            f" say --host {host} if Prometheus runs here"
        )


def _refuse_said(names: Sequence[str], message: str) -> None:
    """Refuse these options if they are on the command line; `{}` in the message becomes the option."""
    context = click.get_current_context()
    for parameter in context.command.params:
        is_said = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if parameter.name in names and is_said:
            raise Misuse(message.format(parameter.opts[0]))
