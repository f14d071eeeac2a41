"""What the logs of a run's folder say, of training and of probes alike: figures, and what is absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bench.case import Case
from bench.judgement.estimate import Estimate
from bench.judgement.probed import read_probe_trials, results_of_probe
from bench.judgement.results import results_of
from bench.judgement.trials import read_trials
from bench.peaks import Peak, peak_of
from workloads.cards.training_options import local_batch, parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that is known of a run by its own logs; see `bench.summary.Summary` for what each field is."""

    trials_done: int
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...]
    effective_batch: dict[str, int] = field(default_factory=dict)
    peak: Peak | None = None
    step_spread_ratio: float | None = None


def findings(case: Case, folder: Path, device_name: str | None) -> Findings:
    """Read and judge the logs.

    device_name: of the GPU, as its driver gives it; None for a CPU.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    return _of_probe(case, folder) if case.model is None else _of_training(case, folder, device_name)


def _of_probe(case: Case, folder: Path) -> Findings:
    logs = read_probe_trials(folder, case.ranks)
    estimates, notes = results_of_probe(case, logs)
    return Findings(trials_done=len(logs.trials), estimates=estimates, notes=(*logs.notes, *notes))


def _of_training(case: Case, folder: Path, device_name: str | None) -> Findings:
    logs = read_trials(folder, case.ranks)
    peak = peak_of(device_name, case.precision)
    estimates, notes = results_of(case, logs.trials, peak)
    card = case.card()
    data_ranks = card.data_ranks(case)
    return Findings(
        trials_done=len(logs.trials),
        estimates=estimates,
        notes=(*card.notes(case), *logs.notes, *notes),
        effective_batch={
            "local": local_batch(case, data_ranks),
            "data_ranks": data_ranks,
            "parts": parts(case),
            "total": case.shape.batch,
        },
        peak=peak if isinstance(peak, Peak) else None,
        step_spread_ratio=max((trial.step_spread_ratio for trial in logs.trials), default=None),
    )
