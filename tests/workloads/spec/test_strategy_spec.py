"""A spec refuses what it cannot mean, with words that say what it can."""

import pytest

from tests.workloads.training.setups import small_setup
from workloads.data_parallel.spec import SingleSpec
from workloads.options import MICROBATCHES, batch_refusals, local_batch, microbatch_count
from workloads.registry import SPECS, spec_of
from workloads.spec import Needs, Option, StrategySpec

BUCKET = Option(name="bucket_mb", default=25.0, minimum=0.5, help="")
WORKERS = Option(name="workers", default=1, minimum=0, help="")
OVERLAP = Option(name="overlap", default=True, help="")
LATER = Option(name="colour", default="red", choices=("red", "blue"), help="", added_later=True)
COMPILE = Option(name="compile", default="none", choices=("none", "default"), help="")


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (BUCKET, "0.5", 0.5),
        (BUCKET, "3", 3.0),
        (WORKERS, "0", 0),
        (OVERLAP, "False", False),
        (OVERLAP, "true", True),
        (COMPILE, "default", "default"),
    ],
)
def test_text_becomes_a_value_of_the_defaults_type(option: Option, text: str, value: object) -> None:
    parsed = option.parse(text)
    assert parsed == value
    assert type(parsed) is type(option.default)


@pytest.mark.parametrize(
    ("option", "text", "allowed"),
    [
        (BUCKET, "0.4", "a number of at least 0.5"),
        (BUCKET, "nan", "a number of at least 0.5"),
        (BUCKET, "inf", "a number of at least 0.5"),
        (BUCKET, "big", "a number of at least 0.5"),
        (WORKERS, "1.5", "a whole number of at least 0"),
        (WORKERS, "-1", "a whole number of at least 0"),
        (OVERLAP, "yes", "true or false"),
        (COMPILE, "fast", "none, default"),
    ],
)
def test_an_ill_typed_value_is_refused_with_what_is_allowed(option: Option, text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf'^option {option.name} is "{text}"; it may be {allowed}$'):
        option.parse(text)


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        (Needs(), "1 or more ranks; cpu or cuda"),
        (Needs(maximum_ranks=1), "1 rank; cpu or cuda"),
        (Needs(minimum_ranks=2, maximum_ranks=2, devices=("cuda",)), "2 ranks; cuda"),
        (Needs(minimum_ranks=2, maximum_ranks=8), "2 to 8 ranks; cpu or cuda"),
    ],
)
def test_needs_are_said_in_words(needs: Needs, text: str) -> None:
    assert needs.text() == text


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_each_spec_is_whole(spec: StrategySpec) -> None:
    names = [option.name for option in spec.options]
    assert len(names) == len(set(names))
    assert all(option.help for option in spec.options)
    assert all(option.parse(str(option.default)) == option.default for option in spec.options)
    assert spec.summary
    assert spec.version >= 1
    assert spec.parity.reason or spec.parity.kind != "none"
    assert all(set(variant) <= set(names) for variant in spec.parity.variants)


def test_strategies_have_names_of_their_own() -> None:
    names = [spec.name for spec in SPECS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("strategy", "ranks", "training_ranks"), [("single", 1, 1), ("ddp", 4, 4), ("parameter_server", 4, 3)]
)
def test_ranks_that_train_share_the_work_of_a_batch(strategy: str, ranks: int, training_ranks: int) -> None:
    spec, setup = spec_of(strategy), small_setup(strategy, ranks=ranks)
    assert spec.training_ranks(setup) == training_ranks
    assert sum(spec.data_share(setup, rank) is not None for rank in range(ranks)) == training_ranks


def test_a_batch_is_split_into_what_the_strategy_calls_its_parts() -> None:
    pipeline = small_setup("ddp", options={MICROBATCHES.name: 8})
    assert (microbatch_count(pipeline), local_batch(pipeline, data_ranks=1)) == (8, 1)
    assert (microbatch_count(small_setup("ddp", options={"accumulate": 2})), microbatch_count(small_setup("ddp"))) == (
        2,
        1,
    )


def test_a_batch_that_its_parts_do_not_divide_is_refused_by_their_name() -> None:
    [reason] = batch_refusals(small_setup("ddp", options={MICROBATCHES.name: 3}), data_ranks=1)
    assert reason == "batch 8 cannot be shared equally by 1 data rank x microbatches 3; --batch 6 or 9 would fit"


def test_an_option_that_came_later_is_no_part_of_the_key_at_its_default() -> None:
    class LaterSpec(SingleSpec):
        options = (WORKERS, LATER)

    spec = LaterSpec()
    assert spec.options_in_key({"workers": 1, "colour": "red"}) == {"workers": 1}
    assert spec.options_in_key({"workers": 1, "colour": "blue"}) == {"workers": 1, "colour": "blue"}


def test_a_setup_from_before_an_option_has_its_default() -> None:
    assert LATER.of(small_setup()) == "red"
    assert LATER.of(small_setup(options={"colour": "blue"})) == "blue"
