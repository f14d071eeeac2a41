"""What dashboards have in common: what may be chosen at their top, moments that are marked, and links between them."""

from __future__ import annotations

from collectors.metrics.agent import RESULT_INFO, RUN_INFO
from collectors.metrics.gate import VERDICT
from collectors.metrics.host import HOST_CPU_SECONDS
from collectors.metrics.metric import Metric
from collectors.metrics.rank import STEP_SECONDS
from dashboards import promql
from dashboards.model import Annotation, Link, Variable
from dashboards.promql import Match
from dashboards.queries import marks

# What may be chosen. Each choice is of what those before it leave; a label that nothing has matches "All".

OF_CLUSTER = {"cluster": "$cluster"}
OF_NODE = {**OF_CLUSTER, "instance": "$node"}
OF_RUNS = {**OF_CLUSTER, "suite": "$suite", "strategy": "$strategy", "name": "$series", "run": "$run"}

CLUSTER = Variable(name="cluster", label="Cluster", query=promql.choices(HOST_CPU_SECONDS, "cluster"))
NODE = Variable(name="node", label="Node", query=promql.choices(HOST_CPU_SECONDS, "instance", **OF_CLUSTER))
ONE_NODE = Variable(
    name="node",
    label="Node",
    query=promql.choices(HOST_CPU_SECONDS, "instance", **OF_CLUSTER),
    is_single=True,
)


def one_cluster(*others: Metric) -> Variable:
    """Return the choice of exactly one cluster of those that have results, or one of these metrics before any result.

    None where Prometheus adds no such label. Two clusters may have a result each of the same series, and one history
    that exporters of several clusters show is to be seen once.
    """
    return Variable(
        name="cluster", label="Cluster", query=promql.choices(RESULT_INFO, "cluster", *others), is_single=True
    )


CLUSTER_OF_RESULTS = one_cluster()
SUITE = Variable(name="suite", label="Suite", query=promql.choices(RESULT_INFO, "suite", **OF_CLUSTER))
STRATEGY = Variable(name="strategy", label="Strategy", query=promql.choices(RESULT_INFO, "strategy", **OF_CLUSTER))
SERIES = Variable(
    name="series",
    label="Series",
    query=promql.choices(RESULT_INFO, "name", **OF_CLUSTER, strategy="$strategy"),
)
LIVE_SUITE = Variable(name="suite", label="Suite", query=promql.choices(RUN_INFO, "suite", **OF_CLUSTER))
LIVE_STRATEGY = Variable(name="strategy", label="Strategy", query=promql.choices(RUN_INFO, "strategy", **OF_CLUSTER))
LIVE_SERIES = Variable(
    name="series", label="Series", query=promql.choices(RUN_INFO, "name", **OF_CLUSTER, strategy="$strategy")
)
ONE_RUN = Variable(
    name="run",
    label="Run",
    query=promql.choices(RUN_INFO, "run", **OF_CLUSTER, strategy="$strategy", name="$series"),
    is_single=True,
    begins_with_last=True,
)
RANK = Variable(name="rank", label="Rank", query=promql.choices(STEP_SECONDS, "rank"))


# Moments that are marked on every panel. chosen: of what a mark is, by its labels or those of the result it belongs to.

_RUN = ("run", "name", "nodes")
UNCHANGED = ("same", "no_change_shown", "insufficient_data")
"""Verdicts that tell of no change."""
_VERDICT = ("suite", "case", "ranks", "hardware", "series", "figure", "verdict")


def runs_marked(**chosen: str | Match) -> tuple[Annotation, Annotation]:
    """Return the marks where these runs began and ended."""
    runs = promql.select(RUN_INFO, **chosen)
    text = "{{name}}: {{run}}, nodes: {{nodes}}"
    return (
        Annotation(name="Run began", expression=marks.begins(runs, by=_RUN), text=text, colour="information"),
        Annotation(name="Run ended", expression=marks.ends(runs, by=_RUN), text=text, colour="plain"),
    )


def verdicts_marked(**chosen: str | Match) -> Annotation:
    """Return the marks where the gate finds something of these results."""
    of_verdict = {label: value for label, value in chosen.items() if label in (*VERDICT.labels, "cluster")}
    of_result = {label: value for label, value in chosen.items() if label not in VERDICT.labels}
    found = promql.select(VERDICT, **of_verdict, verdict=promql.none_of(*UNCHANGED))
    came = marks.stands(found, by=_VERDICT)
    return Annotation(
        name="Verdict",
        expression=promql.where(came, promql.select(RESULT_INFO, **of_result), on=("series",)) if of_result else came,
        text="{{suite}}: {{case}} on {{ranks}} ranks: {{figure}}: {{verdict}}",
        colour="warning",
    )


def of_alerts(**chosen: str | Match) -> dict[str, str | Match]:
    """Return the conditions on labels of alerts: a variable (`$gpu`) leaves those without the label, too."""
    return {label: promql.if_any(value) if isinstance(value, str) else value for label, value in chosen.items()}


def alerts_marked(**chosen: str | Match) -> Annotation:
    """Return the marks where alerts begin to fire. chosen: see `of_alerts`."""
    return Annotation(
        name="Alert",
        expression=marks.alerts("instance", "gpu", "suite", "case", "strategy", "run", **of_alerts(**chosen)),
        text="{{alertname}} {{what}}",
        colour="bad",
    )


ALERTS_OF_RESULTS, ALERTS_OF_NODES = promql.one_of("result", "suite"), promql.none_of("result", "suite")
"""The components of alerts that are marked on pages of results, which have no node, and on those of nodes."""


# Where values lead to.

_KEPT = ("cluster",)
TO_RUN = Link(title="This run", dashboard="one-run", choices={"run": "run"}, kept=_KEPT)
TO_HOST = Link(title="This node", dashboard="one-host", choices={"node": "instance"}, kept=_KEPT)
TO_GPU = Link(title="This GPU", dashboard="one-gpu", choices={"node": "instance", "gpu": "gpu"}, kept=_KEPT)
TO_SERIES = Link(title="Its nights", dashboard="nightly", choices={"series": "name"}, kept=_KEPT)
