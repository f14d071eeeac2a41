"""The dashboard "Who waits for whom?": the straggler rank, and wait and transfer of collectives."""

from __future__ import annotations

from collectors.metrics.results import (
    RUN_CLOCK_RESIDUAL_SECONDS,
    RUN_COLLECTIVE_TRANSFER_SECONDS,
    RUN_COLLECTIVE_WAIT_SECONDS,
    RUN_HELD_UP_RATIO,
    RUN_LAST_RATIO,
    RUN_STRAGGLER_RATIO,
    RUN_TRACED_BUS_BANDWIDTH,
    RUN_WAITING_RATIO,
)
from dashboards.boards.training_speed import choices, result
from dashboards.model import Dashboard, Panel

DASHBOARD = Dashboard(
    name="who-waits-for-whom",
    title="Who waits for whom?",
    summary="The newest result of each series whose traced windows were joined over its ranks: which rank holds the"
    " others up, and what collectives take beside the wait; worst first.",
    variables=choices(RUN_WAITING_RATIO),
    panels=(
        Panel(
            title="The rank that holds the others up, and by what",
            queries=result(RUN_STRAGGLER_RATIO),
            worst="highest",
        ),
        Panel(
            title="Time that others could begin sooner without the rank",
            queries=result(RUN_HELD_UP_RATIO),
            worst="highest",
        ),
        Panel(title="Collectives to which the rank comes last", queries=result(RUN_LAST_RATIO), worst="highest"),
        Panel(title="Waiting, of the time in collectives", queries=result(RUN_WAITING_RATIO), worst="highest"),
        Panel(title="Wait of one call", queries=result(RUN_COLLECTIVE_WAIT_SECONDS), worst="highest"),
        Panel(title="Transfer of one call", queries=result(RUN_COLLECTIVE_TRANSFER_SECONDS), worst="highest"),
        Panel(title="Bus bandwidth without the wait", queries=result(RUN_TRACED_BUS_BANDWIDTH), worst="lowest"),
        Panel(
            title="How far the ranks' clocks may be off", queries=result(RUN_CLOCK_RESIDUAL_SECONDS), worst="highest"
        ),
    ),
)
