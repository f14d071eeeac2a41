"""What GPUs do not answer, in as few lines as it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collectors.nvml.standing import Answer, Standing

_SAID: dict[Answer, str] = {
    "not supported": "driver {driver} does not tell {questions}; they are left out of this run",
    "not permitted": "this process may not ask for {questions}; they are left out of this run",
    "not always": "no answer at times to {questions}; they are left out then",
}
_OF_SOME = ("NVLink", "GPM", "MIG", "NUMA", "pages", "rows")
"""What a GPU lacks by its kind: an A100 has no GPM, a card no NVLink and no MIG, few are NUMA nodes, and new ones remap
rows and retire no pages."""


def refusals(standings: Iterable[Standing], *, driver: str) -> list[str]:
    """One line for all GPUs that refuse the same questions for the same reason.

    What is lacking by a GPU's kind is in the table of standings only.
    """
    refused: dict[tuple[Answer, str], list[str]] = {}
    for standing in standings:
        name = standing.question
        is_missed = standing.answer != "not supported" or not any(word in name for word in _OF_SOME)
        if standing.answer in _SAID and is_missed:
            if standing.answer == "not always":
                name += f" ({standing.reason})"
            refused.setdefault((standing.answer, standing.gpu), []).append(name)
    alike: dict[tuple[Answer, tuple[str, ...]], list[str]] = {}
    for (answer, gpu), questions in refused.items():
        alike.setdefault((answer, tuple(questions)), []).append(gpu)
    return [
        f"{_named(gpus)}: {_SAID[answer].format(driver=driver, questions=', '.join(questions))}"
        for (answer, questions), gpus in alike.items()
    ]


def _named(gpus: Sequence[str]) -> str:
    return f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(gpus)}"
