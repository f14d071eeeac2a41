"""What the trials of a run say of the rank that holds the others up: an Estimate and a sentence, or the reason why not.

By the rule of `collectors.traces.ranks.verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.judgement.estimate import Estimate, estimate_share
from collectors.catalogue.joined_ranks import RUN_STRAGGLER_RATIO
from collectors.traces.ranks.traced_lateness import TracedLateness
from collectors.traces.ranks.verdict import Nobody, verdict


def held_up(trials: Sequence[TracedLateness]) -> tuple[Estimate | None, str]:
    """The straggler's share of each trial's traced time, None where nobody is one; and what is said of it.

    Judged by trials: lateness that sticks to a trial is that trial's luck, however many of its steps were traced.
    """
    found = verdict(trials)
    if isinstance(found, Nobody):
        said = f"no straggler is named: {found.why}"
        if found.more is not None:
            said += f"; --trials {len(trials) + found.more} or more tells"
        return None, said
    doing = f" ({', '.join(found.names)})" if found.names else ""
    said = (
        f"rank {found.rank} holds the others up by {found.cause}{doing}: it has {found.delay_ratio:.0%} of the lateness"
        " in traced steps"
    )
    return estimate_share(RUN_STRAGGLER_RATIO, found.cost_ratios, rank=str(found.rank), cause=found.cause), said
