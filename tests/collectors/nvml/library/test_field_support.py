"""How questions stand, and in how few lines what is not answered is said."""

from __future__ import annotations

import pynvml
import pytest

from collectors.nvml.collector import refusals
from collectors.nvml.library import FieldSupport, FieldSupportTable, GpuLost, NVMLError


def _refused(gpu: str, question: str, code: int) -> tuple[FieldSupport, ...]:
    support = FieldSupportTable(gpu)
    support.refused(question, NVMLError(code))
    return support.all()


def test_a_question_is_asked_until_it_is_refused_for_good() -> None:
    support = FieldSupportTable("0")
    assert support.is_asked("power")
    assert support.refused("power", NVMLError(pynvml.NVML_ERROR_UNKNOWN))
    assert support.is_asked("power")
    assert not support.refused("power", NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert not support.is_asked("power")


def test_what_has_answered_before_is_not_refused_for_good() -> None:
    support = FieldSupportTable("0")
    support.answered("utilization", 0.5)
    assert support.refused("utilization", NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert support.is_asked("utilization")


def test_an_answer_has_its_cost_and_one_that_was_silent_keeps_the_mark() -> None:
    support = FieldSupportTable("0")
    support.answered("power", 0.5)
    support.refused("energy", NVMLError(pynvml.NVML_ERROR_TIMEOUT))
    support.answered("energy", 0.25)
    assert support.all() == (
        FieldSupport(gpu="0", question="power", answer="answers", cost_s=0.5),
        FieldSupport(gpu="0", question="energy", answer="not always", reason="Timeout", cost_s=0.25),
    )


class FakeAnswer:
    """Answers with a number, or refuses."""

    def __init__(self, *answers: int | Exception) -> None:
        self.asked = 0
        self._answers = answers

    def __call__(self) -> int:
        answer = self._answers[self.asked]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_is_asked_is_given_and_its_cost_is_kept() -> None:
    clock_ns = iter((0, 250_000_000))
    support = FieldSupportTable("0", clock_ns=lambda: next(clock_ns))
    assert support.ask("power", FakeAnswer(7)) == 7
    assert support.all() == (FieldSupport(gpu="0", question="power", answer="answers", cost_s=0.25),)


def test_what_is_refused_for_a_moment_is_asked_again_and_what_is_refused_for_good_is_not() -> None:
    support = FieldSupportTable("0")
    answer = FakeAnswer(NVMLError(pynvml.NVML_ERROR_TIMEOUT), 7, NVMLError(pynvml.NVML_ERROR_NO_PERMISSION), 8)
    assert [support.ask("power", answer) for _ in range(4)] == [None, 7, None, None]
    assert answer.asked == 3


def test_an_answer_that_cannot_be_used_has_its_reason_and_is_asked_for_again() -> None:
    support = FieldSupportTable("0")
    support.answered("bytes", 0.5)
    support.doubted("bytes", "it may have wrapped")
    assert support.is_asked("bytes")
    assert support.all() == (
        FieldSupport(gpu="0", question="bytes", answer="not always", reason="it may have wrapped", cost_s=0.5),
    )


def test_a_lost_gpu_is_no_refusal() -> None:
    with pytest.raises(GpuLost, match="GPU is lost"):
        FieldSupportTable("0").refused("power", NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))


def test_gpus_that_refuse_alike_share_a_line() -> None:
    alike = [one for gpu in "01" for one in _refused(gpu, "energy counter", pynvml.NVML_ERROR_NOT_SUPPORTED)]
    other = _refused("2", "power sensor", pynvml.NVML_ERROR_NO_PERMISSION)
    assert refusals([*alike, *other], driver="470.1") == [
        "GPUs 0, 1: driver 470.1 does not report energy counter; they are left out of this run",
        "GPU 2: this process is not permitted to read power sensor; they are left out of this run",
    ]


@pytest.mark.parametrize("question", ["NVLink bytes sent", "GPM", "corrected pages retired"])
def test_what_a_gpu_lacks_by_its_kind_is_not_said(question: str) -> None:
    assert refusals(_refused("0", question, pynvml.NVML_ERROR_NOT_SUPPORTED), driver="590") == []
    assert refusals(_refused("0", question, pynvml.NVML_ERROR_NO_PERMISSION), driver="590") != []
