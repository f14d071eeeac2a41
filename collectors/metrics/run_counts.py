"""Metrics that count: steps of runs that go on and how long each took, and the runs of the history by outcome."""

from __future__ import annotations

from collectors.metrics.metric import NODE, RANK, metrics_in

# Of runs that go on, from their ranks' logs.

STEP_DURATION = NODE.histogram(
    "observatory_step_duration_seconds{slot}",
    "Time of each measured step of each rank of a run, all waits included: every one since the run began, also those"
    " from before the exporter did. 0 where none is measured yet; shown until a minute after the run's end or until"
    " another run takes the slot, with which it begins anew. Exemplars are the newest step in each bucket, with run,"
    " trial, rank and step (counted from 0 with the first warm-up of its trial); a run whose name has more than about"
    " 100 letters has none.",
)
STEPS = RANK.counter(
    "observatory_steps_total{mark}",
    "Steps that a rank has done since its run began, over all trials: warm_up (those of a convergence check, too) or"
    " measured; neither traced steps nor others that are instrumented. Shown as long as the histogram of their times.",
)

# Of the history.

RUNS = NODE.counter(
    "observatory_runs_total{strategy, outcome}",
    "Runs in the history, cases of suites and ad hoc runs included, by outcome: done, failed, timed_out or interrupted."
    " Counted in the store, so that it outlives exporters; a run that `observatory prune --history` deletes, or that is"
    " resumed and ends otherwise, counts no more as what it was, which a rate takes for a counter's reset.",
)

METRICS = metrics_in(globals())
