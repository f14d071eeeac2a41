"""Measures a pair of commits on an engine, in a process of its own: `ENGINE FILE NODES REPOSITORY GOOD BAD FOLDER`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from bench.engines.cluster import NodeRequest
from bench.errors import say
from bench.gate.gated import log_trials
from bench.session.measure import CaseOrder, Listener, TrialSettings
from bench.session.session import open_session
from bench.session.tree_pairs import measure_pair
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import small_case

PAIRS = 6


def main() -> None:
    """Print each side's commit, outcome, hosts and logarithms of its step, as JSON."""
    engine, file, nodes, repository, good, bad, folder = sys.argv[1:]
    runs = Path(folder, "pairs")
    runs.mkdir()
    with open_session(
        runs=runs,
        store_url=f"sqlite:///{folder}/pairs.sqlite",
        tell=say,
        work="pairs",
        engine=engine,
        request=NodeRequest(nodes=int(nodes), file=Path(file)),
    ) as session:
        case = replace(small_case("ddp", 4), nodes=int(nodes))
        order = CaseOrder(case=case, settings=TrialSettings(limit_s=60.0))
        both = measure_pair(
            session, order, (good, bad), Path(repository), pairs=PAIRS, note="pair", listener=Listener()
        )
    sides = [
        {
            "commit": side.commit,
            "outcome": side.outcome,
            "notes": side.notes,
            "trials": log_trials(side, RUN_STEP_SECONDS.name, "{}"),
        }
        for side in (both.first, both.second)
    ]
    print(json.dumps(sides))


if __name__ == "__main__":
    main()
