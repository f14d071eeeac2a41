"""`observatory doctor`: this machine in one page, and what differs from the last good run."""

from __future__ import annotations

from contextlib import ExitStack

import click

from bench.errors import InfrastructureFailed
from bench.places import STORE
from bench.reports.formats import FORMAT


@click.command(name="doctor")
@STORE
@FORMAT
def command(store_url: str | None, format_name: str) -> None:
    """This machine in one page, and what differs from the last good run.

    It measures nothing: a ceiling is what a probe found before. Where the history cannot be read, the page says so.

    \b
    Example:
      observatory doctor --format json
    """
    from bench import machine
    from bench.doctor.gathering import gather
    from bench.doctor.gpu_state import installed_nvml
    from bench.doctor.ranks import machine_of_ranks
    from bench.engines.local import LocalEngine
    from bench.peaks import Absent
    from bench.reports.doctor import print_page
    from bench.store.history import History

    read, ranks = machine_of_ranks(LocalEngine, machine.read)
    history: History | Absent
    with ExitStack() as stack:
        try:
            history = stack.enter_context(History(store_url, writable=False))
        except InfrastructureFailed as error:
            history = Absent(reason=str(error))
        page = gather(read, ranks, history, nvml=installed_nvml())
    print_page(page, format_name)
