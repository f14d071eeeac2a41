"""Buckets of DistributedDataParallel: how many a size makes, and the size that a model gets by default."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.data_parallel.test_ddp import payloads_of_a_step
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.core.buckets import bucket_mb, bucket_notes, buckets, filled_buckets
from workloads.cost_models.shape import PRESETS, Shape
from workloads.registry import SPECS, spec_of
from workloads.spec import OptionValue, StrategySpec

TINY = PRESETS["tiny"]
WITH_BUCKETS = [spec for spec in SPECS if any(option.name == "bucket_mb" for option in spec.options)]


def setup(shape: Shape = TINY, **options: OptionValue) -> SmallSetup:
    return small_setup("ddp", ranks=2, shape=shape, options=options)


def test_a_bucket_ends_with_the_tensor_that_fills_it() -> None:
    assert filled_buckets([3, 3, 3, 1], 5) == 2
    assert filled_buckets([3, 3, 3, 1], 6) == 2
    assert filled_buckets([3, 3, 3, 1], 3) == 4
    assert filled_buckets([3, 3, 3, 1], 100) == 1


@pytest.mark.parametrize(
    ("shape", "size_mb"), [(TINY, 0.0), (TINY, 0.4), (TINY, 1.0), (TINY, 25.0), (SMALL, 0.0), (SMALL, 0.02)]
)
def test_distributed_data_parallel_makes_as_many_buckets_as_are_predicted(
    shape: Shape, size_mb: float, on_ranks: OnRanks
) -> None:
    case = setup(shape, bucket_mb=size_mb)
    for sent in on_ranks(2, payloads_of_a_step, case):
        assert len(sent) == buckets(case)


def test_the_issue_s_sizes_make_nine_and_seven_buckets_of_tiny() -> None:
    assert (bucket_mb(setup()), buckets(setup())) == (0.35, 9)
    assert buckets(setup(bucket_mb=0.35)) == 9
    assert buckets(setup(bucket_mb=0.4)) == 7


@pytest.mark.parametrize("name", PRESETS)
def test_a_default_is_a_tenth_of_the_gradients_up_to_25(name: str) -> None:
    gradients_mb = 4 * PRESETS[name].parameters() / 2**20
    assert bucket_mb(setup(PRESETS[name])) == pytest.approx(min(25, gradients_mb / 10), rel=0.05)
    assert buckets(setup(PRESETS[name])) >= 7


def test_compiled_blocks_get_buckets_that_the_compiler_takes() -> None:
    compiled = setup(compile="default")
    assert bucket_mb(compiled) == 1
    (ddp,) = (spec for spec in WITH_BUCKETS if spec.name == "ddp")
    assert ddp.refusals(compiled) == []


@pytest.mark.parametrize("spec", WITH_BUCKETS, ids=lambda spec: spec.name)
def test_a_settled_case_names_the_size_that_it_measures(spec: StrategySpec) -> None:
    case = small_setup(spec.name, ranks=max(2, spec.needs.minimum_ranks))
    settled = replace(case, options=spec.settled(case))
    assert 0.001 <= float(settled.options["bucket_mb"]) < 1
    assert spec.transfers(settled) == spec.transfers(case)
    chosen = replace(case, options={**case.options, "bucket_mb": 25.0})
    assert spec.settled(chosen)["bucket_mb"] == 25.0


@pytest.mark.parametrize("spec", WITH_BUCKETS, ids=lambda spec: spec.name)
def test_a_bucket_of_some_bytes_is_refused(spec: StrategySpec) -> None:
    case = small_setup(spec.name, ranks=max(2, spec.needs.minimum_ranks), options={"bucket_mb": 1e-7})
    assert spec.refusals(case) == ["option bucket_mb is 1e-07; it must be 0.001 MiB or more, or 0 for the default"]


def test_one_bucket_for_all_gradients_is_noted_with_a_size_that_makes_more() -> None:
    note = "one bucket holds all gradients, so nothing can be hidden"
    assert bucket_notes(setup(bucket_mb=25.0)) == [f"{note}; bucket_mb=0.35 makes 9"]
    assert bucket_notes(setup()) == []
    assert bucket_notes(small_setup("ddp", ranks=1, options={"bucket_mb": 25.0})) == []
    compiled = setup(SMALL, compile="default")
    assert bucket_notes(compiled) == [f"{note}; torch.compile needs buckets of at least 1 MB"]


def test_gradients_that_are_averaged_after_backward_have_no_note_about_buckets() -> None:
    (ddp,) = (spec for spec in WITH_BUCKETS if spec.name == "ddp")
    assert ddp.notes(setup(bucket_mb=25.0, overlap=False)) == []
    assert len(ddp.notes(setup(bucket_mb=25.0))) == 1


UNIT_BY_UNIT: tuple[tuple[str, int, dict[str, OptionValue]], ...] = (
    ("ring_attention", 2, {"sharded": True}),
    ("ulysses", 2, {"sharded": True}),
    ("three_d", 8, {"data_axis": "fsdp"}),
)


@pytest.mark.parametrize(("name", "ranks", "options"), UNIT_BY_UNIT, ids=lambda value: str(value))
def test_a_size_of_buckets_is_refused_where_fsdp2_has_none(
    name: str, ranks: int, options: dict[str, OptionValue]
) -> None:
    spec = spec_of(name)
    case = small_setup(name, ranks=ranks, options=options)
    assert spec.all_refusals(case) == []
    settled = replace(case, options=spec.settled(case))
    assert settled.options["bucket_mb"] == 0
    assert spec.all_refusals(settled) == []
    assert not any("bucket" in note for note in spec.notes(settled))
    (reason,) = spec.refusals(replace(case, options={**case.options, "bucket_mb": 1.0}))
    (option, value), *_ = options.items()
    assert reason.startswith(f"option bucket_mb is 1 with {option}={str(value).lower()}, where FSDP2 reduces gradients")
