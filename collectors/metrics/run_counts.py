"""Counters: steps of active runs, with a histogram of their durations, and runs in the history by outcome."""

from __future__ import annotations

from collectors.metrics.metric import EACH_RANK, NODE, metrics_in

# Active runs, from their ranks' logs.

STEP_DURATION = NODE.histogram(
    "observatory_step_duration_seconds{slot}",
    "Time of each measured step of each rank of a run, all waits included: every step since the run began, even"
    " those before the exporter started. 0 if none is measured yet. The histogram remains until a minute after"
    " the run's end, or until another run takes the slot and starts it from 0. Exemplars are the newest step in"
    " each bucket, with run, trial, rank and step (counted from 0 with the first warm-up step of the trial); a"
    " run whose name has more than about 100 letters has none.",
)
STEPS = EACH_RANK.counter(
    "observatory_steps_total{mark}",
    "Steps that a rank has completed since its run began, over all trials: warm_up (also those of a convergence"
    " check) or measured. Traced and other instrumented steps do not count. Exported as long as"
    " observatory_step_duration_seconds.",
)

# The history.

RUNS = NODE.counter(
    "observatory_runs_total{strategy, outcome}",
    "Runs in the history, cases of suites and ad hoc runs included, by outcome: done, failed, timed_out or"
    " interrupted. Counted in the store, so it survives a restart of the exporter. A run that `observatory"
    " prune --history` deletes, or that is resumed and ends differently, no longer counts under its old"
    " outcome, which a rate takes for a counter reset.",
)

METRICS = metrics_in(globals())
