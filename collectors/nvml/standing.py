"""How each GPU stands to each question: whether it answers, why not, and what an answer costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from collectors.nvml.library import NVMLError, says_forbidden, says_lost, says_unsupported

Answer = Literal["answers", "not supported", "not permitted", "not always"]
Told = TypeVar("Told")


class GpuLost(Exception):
    """The GPU answers nothing more until it is reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One GPU and one question.

    reason: NVML's own, or why its answer says nothing; None where it answers. cost_s: what the last answer took, None
    where there was none; of a field by the driver's account, of a function by ours.
    """

    gpu: str
    question: str
    answer: Answer
    reason: str | None = None
    cost_s: float | None = None


class Standings:
    """All questions to one GPU. A question that was refused for good is never asked again.

    One that has answered before is not refused for good: what was switched off may be switched on again, as MIG and
    what it takes from a GPU.
    """

    def __init__(self, gpu: str, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._gpu = gpu
        self._clock_ns = clock_ns
        self._by_question: dict[str, Standing] = {}
        self._answering: set[str] = set()

    def ask(self, question: str, read: Callable[[], Told]) -> Told | None:
        """What `read` gives; None where that is refused now, or was for good.

        Raises:
            GpuLost: nothing of this GPU need be asked again.
        """
        if not self.is_asked(question):
            return None
        begun_ns = self._clock_ns()
        try:
            told = read()
        except NVMLError as error:
            self.refused(question, error)
            return None
        self.answered(question, (self._clock_ns() - begun_ns) / 1e9)
        return told

    def answered(self, question: str, cost_s: float) -> None:
        """It answered. One that does not always answer keeps that mark."""
        self._answering.add(question)
        before = self._by_question.get(question)
        if before is not None and before.answer == "not always":
            self._put(question, "not always", before.reason, cost_s)
        else:
            self._put(question, "answers", None, cost_s)

    def refused(self, question: str, error: Exception) -> bool:
        """It did not answer; whether to ask again.

        Raises:
            GpuLost: nothing of this GPU need be asked again.
        """
        if says_lost(error):
            raise GpuLost(str(error)) from error
        if says_unsupported(error) and question not in self._answering:
            self._put(question, "not supported", str(error), None)
            return False
        if says_forbidden(error):
            self._put(question, "not permitted", str(error), None)
            return False
        self._put(question, "not always", str(error), None)
        return True

    def doubted(self, question: str, reason: str) -> None:
        """It answered, and the answer cannot be used; it is asked again."""
        before = self._by_question.get(question)
        self._put(question, "not always", reason, None if before is None else before.cost_s)

    def is_asked(self, question: str) -> bool:
        """It has not refused for good."""
        standing = self._by_question.get(question)
        return standing is None or standing.answer in {"answers", "not always"}

    def all(self) -> tuple[Standing, ...]:
        """As they stand, in the order in which they were first asked."""
        return tuple(self._by_question.values())

    def _put(self, question: str, answer: Answer, reason: str | None, cost_s: float | None) -> None:
        self._by_question[question] = Standing(
            gpu=self._gpu, question=question, answer=answer, reason=reason, cost_s=cost_s
        )
