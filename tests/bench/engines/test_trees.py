"""Engines of several source trees at once, each tree sent to simulated nodes whose agents and ranks run from it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bench.engines.cluster import NodeRequest
from bench.engines.local import LocalAllocation
from bench.session.checkouts import SOURCE, check_checkout, check_out
from bench.session.measure import CaseOrder, CasePlace, TrialSettings, measure
from tests.bench.made.examples import make_probe
from tests.bench.session.test_source_trees import BEFORE_PROTOCOL_5, commit_or_skip


@pytest.mark.slow
def test_two_nodes_run_an_old_tree_and_the_present_one_in_turn(tmp_path: Path) -> None:
    old, new = commit_or_skip(BEFORE_PROTOCOL_5), commit_or_skip("HEAD")
    # A probe: trainings have another definition by now.
    probe = make_probe(trials=2, steps=3, warm_up=1, nodes=2)
    case = replace(probe, options={**probe.options, "collectives": "all_reduce", "max_bytes": 4096})
    runs = tmp_path / "runs"
    runs.mkdir()
    with ExitStack() as stack, LocalAllocation(NodeRequest(nodes=2)) as allocation:
        checked = [check_checkout(stack.enter_context(check_out(commit, SOURCE)), case) for commit in (old, new)]
        engines = allocation.open_trees(runs, [one.tree for one in checked])
        for engine in engines:
            stack.callback(engine.stop)
        settings = TrialSettings(limit_s=60.0)
        orders = [
            CaseOrder(case=one.case, settings=settings, place=CasePlace(engine=engine, machine=engine.machine()))
            for one, engine in zip(checked, engines, strict=True)
        ]
        place = orders[0].place
        assert place is not None
        with measure(
            orders, engine=place.engine, machine=place.machine, folder=runs, is_counterbalanced=True
        ) as measured:
            found = [(summary.commit, summary.outcome, summary.trials_done) for summary in measured.summaries]
    assert found == [(old, "done", 2), (new, "done", 2)]
    mine = {str(one.tree.folder.parent) for one in checked}
    assert not [path for path in mine if Path(path).exists()]
    assert all(Path(path).name.startswith("observatory-tree-") for path in mine)
