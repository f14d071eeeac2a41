"""`observatory doctor`: describes this machine on one page, with changes since the last good run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from bench.cli.options import FORMAT, RUNS, STORE, NamedPath, engine_options, seconds_within
from bench.errors import FINE, INFRASTRUCTURE, InfrastructureFailed, Misuse, interrupt_in_order, plural, say
from bench.store.files import data_folder
from workloads.cost_models.absent import Absent


@click.command(name="doctor")
@engine_options
@RUNS
@STORE
@FORMAT
@click.option(
    "--record",
    "recording",
    metavar="FILE",
    type=NamedPath(is_folder=False),
    help="Output file for a recording of NVML's answers; prints no page.",
)
@click.option(
    "--seconds",
    type=float,
    show_default="60",
    callback=seconds_within(1, 86_400, "time to record for"),
    help="Duration of --record.",
)
@click.option(
    "--clean",
    "is_cleaning",
    is_flag=True,
    help="Remove folders that killed runners and agents left in TMPDIR; prints no page.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="With --clean: print what would be removed; remove nothing.")
@click.option("--nvlink-per-link", "is_per_nvlink", is_flag=True, help="With --record: also the bytes of each NVLink.")
def command(
    store_url: str | None,
    format_name: str,
    recording: Path | None,
    seconds: float | None,
    engine_name: str,
    nodes: int,
    ranks_per_node: int | None,
    engine_file: Path | None,
    runs_folder: Path,
    *,
    is_cleaning: bool,
    is_dry: bool,
    is_per_nvlink: bool,
) -> int:
    """Describe this machine on one page, with changes since the last good run.

    The page measures nothing: ceilings come from earlier probes. With --engine or --nodes, the command instead reads
    the state and clock of each node and measures the nodes for a few seconds; the exit code is 4 if a node is bad.
    --clean also prints which folders it leaves, and why.

    \b
    Example:
      observatory doctor --format json
      observatory doctor --nodes 2
      observatory doctor --clean --dry-run
    """
    is_fleet = engine_name != "local" or nodes > 1
    if is_cleaning:
        if is_fleet or recording is not None or seconds is not None or is_per_nvlink:
            raise Misuse("--clean cleans this machine; leave the engine, its nodes and --record out")
        return _clean(format_name, is_dry=is_dry)
    if is_dry:
        raise Misuse("--dry-run shows what --clean would remove; add --clean")
    if is_fleet and (recording is not None or seconds is not None or is_per_nvlink):
        raise Misuse("--record records this machine; leave the engine and its nodes out")
    if is_fleet:
        return _check_nodes(engine_name, nodes, ranks_per_node, engine_file, runs_folder, format_name)
    if engine_file is not None or ranks_per_node is not None:
        raise Misuse("--engine-file and --ranks-per-node are for several nodes; add --engine, or --nodes")
    if recording is not None:
        from bench.machine.doctor.record import SECONDS, record_to

        record_to(recording, SECONDS if seconds is None else seconds, per_link=is_per_nvlink, on_notice=say)
    elif seconds is not None:
        raise Misuse("--seconds is how long --record records; add --record FILE")
    elif is_per_nvlink:
        raise Misuse("--nvlink-per-link changes what --record records; add --record FILE")
    else:
        _print_page(store_url, format_name)
    return FINE


def _clean(format_name: str, *, is_dry: bool) -> int:
    from bench.machine.doctor.report import print_swept
    from bench.machine.temporary_folders import sweep

    swept = sweep(is_dry=is_dry)
    print_swept(swept, format_name, is_dry=is_dry)
    return INFRASTRUCTURE if any(folder.has_failed for folder in swept) else FINE


def _check_nodes(
    engine_name: str,
    nodes: int,
    ranks_per_node: int | None,
    engine_file: Path | None,
    runs_folder: Path,
    format_name: str,
) -> int:
    from bench.engines.cluster import ClusterEngine, NodeRequest
    from bench.engines.registry import ENGINES
    from bench.machine.doctor.fleet import last_good
    from bench.machine.doctor.fleet_check import check_fleet
    from bench.machine.doctor.report import print_fleet
    from bench.machine.temporary_folders import TemporaryFolder
    from bench.suite.folder import suite_run_folders

    interrupt_in_order("")
    before = last_good(suite_run_folders(runs_folder))
    with (
        ENGINES[engine_name](NodeRequest(nodes=nodes, file=engine_file, tell=say)) as allocation,
        TemporaryFolder("observatory-check-") as folder,
        allocation.open(folder) as engine,
    ):
        assert isinstance(engine, ClusterEngine), "an engine of nodes"
        fleet = check_fleet(engine, ranks_per_node=ranks_per_node, before=before, tell=say)
    print_fleet(fleet, format_name)
    return INFRASTRUCTURE if fleet.findings else FINE


def _print_page(store_url: str | None, format_name: str) -> None:
    from bench.engines.local import LocalEngine
    from bench.machine import machine
    from bench.machine.doctor.collect import DEADLINE_S, gather, gpu_fields, machine_of_ranks
    from bench.machine.doctor.report import print_page
    from bench.store.history import History
    from collectors.nvml.collector import NvmlCollector
    from collectors.nvml.library import installed_nvml

    say("doctor: starting ranks and loading torch, to see the machine as ranks do")
    read, ranks = machine_of_ranks(partial(LocalEngine, data_folder() / "runs"), machine.read)
    say(f"doctor: asking {plural(len(read.gpus), 'GPU')} for every NVML field")
    fields = gpu_fields(NvmlCollector(deadline_s=DEADLINE_S))
    say("doctor: reading devices, clocks, links, settings and the history")
    history: History | Absent
    with ExitStack() as stack:
        try:
            history = stack.enter_context(History(store_url, writable=False))
        except InfrastructureFailed as error:
            history = Absent(reason=str(error))
        page = gather(read, ranks, history, nvml=installed_nvml(), fields=fields)
    print_page(page, format_name)
