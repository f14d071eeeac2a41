"""What the spec of `deepspeed` refuses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.workloads.training.setups import small_setup
from workloads.cost_models.absent import Absent
from workloads.deepspeed.spec import DeepSpeedSpec, not_installed
from workloads.spec import OptionValue


def test_a_missing_library_is_refused_with_the_extra_that_brings_it() -> None:
    (reason,) = not_installed(find=lambda name: None)
    assert reason.endswith("pip install 'parallel-observatory[deepspeed]'")


def test_a_stage_that_zero_does_not_have_is_refused() -> None:
    (reason,) = DeepSpeedSpec().refusals(small_setup("deepspeed", ranks=2, options={"stage": 4}))
    assert reason == "option stage is 4; ZeRO has the stages 0, 1, 2 and 3"


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({"stage": 0, "offload": True}, "stage 0 does not read it: leave it out, or use stage=1"),
        ({"stage": 0, "overlap_comm": True}, "stage 0 does not read it: leave it out, or use stage=1"),
        ({"stage": 0, "reduce_bucket_size": 5}, "stage 0 does not read it: leave it out, or use stage=1"),
        ({"param_persistence_threshold": 0}, "only stage 3 reads it: leave it out, or use stage=3"),
        ({"max_reuse_distance": 0}, "only stage 3 reads it: leave it out, or use stage=3"),
        ({"prefetch_bucket_size": 0}, "only stage 3 reads it: leave it out, or use stage=3"),
        ({"stage": 3, "compile": "default"}, "leave it out, or use stage=2"),
    ],
)
def test_what_a_stage_cannot_do_is_refused_with_what_can(options: Mapping[str, OptionValue], ending: str) -> None:
    (reason,) = DeepSpeedSpec().refusals(small_setup("deepspeed", ranks=2, options=options))
    assert reason.endswith(ending)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_is_refused_where_deepspeed_clips_scaled_gradients(stage: int) -> None:
    (reason,) = DeepSpeedSpec().refusals(small_setup("deepspeed", ranks=2, precision="fp16", options={"stage": stage}))
    assert reason.endswith("use --precision bf16, or stage=0")


def test_fp16_runs_in_stage_0() -> None:
    assert DeepSpeedSpec().refusals(small_setup("deepspeed", ranks=2, precision="fp16", options={"stage": 0})) == []


def test_offload_and_small_buckets_are_not_refused() -> None:
    options = {"stage": 3, "offload": True, "overlap_comm": True, "reduce_bucket_size": 5, "prefetch_bucket_size": 0}
    assert DeepSpeedSpec().refusals(small_setup("deepspeed", ranks=2, options=options)) == []


def test_the_peak_is_not_covered_because_of_what_the_engine_holds() -> None:
    peak = DeepSpeedSpec().peak(small_setup("deepspeed", ranks=2))
    assert isinstance(peak, Absent)
    assert peak.reason.startswith("DeepSpeed's engine keeps gradients and weights in buffers of its own")
