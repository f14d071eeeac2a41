"""`observatory doctor`: this machine in one page, and what differs from the last good run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from bench.cli.options import FORMAT, STORE, NamedPath, seconds_within
from bench.errors import InfrastructureFailed, Misuse, say


@click.command(name="doctor")
@STORE
@FORMAT
@click.option(
    "--record",
    "recording",
    metavar="FILE",
    type=NamedPath(is_folder=False),
    help="Record NVML's answers in this file, in place of printing the page.",
)
@click.option(
    "--seconds",
    type=float,
    show_default="60",
    callback=seconds_within(1, 86_400, "time to record for"),
    help="How long --record records.",
)
@click.option(
    "--nvlink-per-link", "is_per_nvlink", is_flag=True, help="With --record: record the bytes of each NVLink, too."
)
def command(
    store_url: str | None, format_name: str, recording: Path | None, seconds: float | None, *, is_per_nvlink: bool
) -> None:
    """This machine in one page, and what differs from the last good run.

    It measures nothing: ceilings are what probes measured before. Where the history cannot be read, the page says so.

    \b
    Example:
      observatory doctor --format json
    """
    if recording is not None:
        from bench.doctor.record import SECONDS, record_to

        record_to(recording, SECONDS if seconds is None else seconds, per_link=is_per_nvlink, on_notice=say)
    elif seconds is not None:
        raise Misuse("--seconds is how long --record records; add --record FILE")
    elif is_per_nvlink:
        raise Misuse("--nvlink-per-link changes what --record records; add --record FILE")
    else:
        _print_page(store_url, format_name)


def _print_page(store_url: str | None, format_name: str) -> None:
    import pynvml

    from bench.analysis.mfu import Absent
    from bench.doctor.collect import DEADLINE_S, gather, gpu_fields, machine_of_ranks
    from bench.engines.local import LocalEngine
    from bench.machine import machine
    from bench.reports.doctor import print_page
    from bench.runs.database import parse_url
    from bench.runs.files import data_folder
    from bench.runs.history import History
    from collectors.nvml.collector import NvmlCollector

    if store_url is not None:
        parse_url(store_url)
    say("doctor: starting ranks, to see the machine as they do (torch is loaded)")
    read, ranks = machine_of_ranks(partial(LocalEngine, data_folder() / "runs"), machine.read)
    say(f"doctor: asking {len(read.gpus)} GPU(s) each question of NVML")
    fields = gpu_fields(NvmlCollector(deadline_s=DEADLINE_S))
    say("doctor: reading devices, clocks, links, settings and the history")
    history: History | Absent
    with ExitStack() as stack:
        try:
            history = stack.enter_context(History(store_url, writable=False))
        except InfrastructureFailed as error:
            history = Absent(reason=str(error))
        page = gather(read, ranks, history, nvml=pynvml, fields=fields)
    print_page(page, format_name)
