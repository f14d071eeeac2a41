"""A case is checked at the door, and says what it is comparable with."""

import json
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.case import Case, check, find_spec, one_rank_baseline, parse_options, settings_of
from bench.errors import Misuse
from bench.rank.fault_injection import Fault, parse_fault
from bench.results.efficiency import scaling_between
from tests.bench.made.examples import SMALL, make_case, small_case
from workloads.cost_models.shape import RopeScaling
from workloads.registry import spec_of
from workloads.spec import OptionValue


def _refused(message: str) -> pytest.RaisesExc[Misuse]:
    return pytest.raises(Misuse, match=f"^{re.escape(message)}$")


def test_an_unknown_strategy_is_answered_with_the_nearest() -> None:
    with _refused('strategy "dpp" is unknown; did you mean "ddp"? (`observatory list` shows all)'):
        find_spec("dpp")


def test_a_strategy_like_no_other_is_answered_with_where_to_look() -> None:
    with _refused('strategy "zzz" is unknown (`observatory list` shows all)'):
        find_spec("zzz")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["overlap"], 'option "overlap" has no value; write overlap=VALUE'),
        (["overlpa=true"], 'ddp has no option "overlpa"; did you mean "overlap"? (`observatory list ddp` shows all)'),
        (["overlap=maybe"], 'ddp: option overlap is "maybe"; it may be true or false'),
        (["clip=1", "clip=2"], "option clip is set twice; set it once"),
    ],
)
def test_a_bad_option_is_refused_with_what_it_may_be(texts: list[str], message: str) -> None:
    with _refused(message):
        parse_options(spec_of("ddp"), texts)


def test_an_option_that_is_also_set_by_its_old_name_is_refused_with_both_names() -> None:
    with _refused("option grad_dtype is set twice (reduce_dtype is its old name); set it once"):
        parse_options(spec_of("fsdp"), ["reduce_dtype=bf16", "grad_dtype=fp32"])


def test_options_that_are_not_given_have_their_default() -> None:
    values = parse_options(spec_of("ddp"), ["bucket_mb=2"])
    assert values == {option.name: option.default for option in spec_of("ddp").options} | {"bucket_mb": 2.0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 0}, "ranks is 0; it must be 1 or more"),
        ({"trials": 0}, "trials is 0; it must be 1 or more"),
        ({"steps": 0}, "steps is 0; it must be 1 or more"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be 9223372036854775807 or less"),
        ({"warm_up": -1}, "warm-up is -1; it must be 0 or more"),
        ({"ranks": 3}, "ddp: batch 4 cannot be shared equally by 3 data ranks; --batch 3 or 6 would fit"),
        (
            {"options": {"accumulate": 4}},
            "ddp: batch 4 cannot be shared equally by 2 data ranks x accumulate 4; --batch 8 would fit",
        ),
        ({"backend": "nccl"}, "backend nccl needs --device cuda; use --backend gloo on the CPU"),
        (
            {"options": {"compile": "default", "bucket_mb": 0.5}},
            "ddp: option bucket_mb is 0.5 with compile=default; torch.compile needs buckets of at least 1 MB:"
            " use bucket_mb=1 or more, or compile=none",
        ),
    ],
)
def test_a_case_that_cannot_run_is_refused_with_what_would(fields: dict[str, Any], message: str) -> None:
    with _refused(message):
        check(small_case(**fields))


def test_single_refuses_a_second_rank() -> None:
    with _refused("single: ranks is 2; it needs 1 rank; cpu or cuda"):
        check(small_case("single", ranks=2))


def test_a_key_changes_with_what_is_measured_and_not_with_how_often() -> None:
    case = small_case()
    assert replace(case, trials=9, steps=9, warm_up=9, trace_steps=9, seed=9).key() == case.key()
    changed = [
        replace(case, version=3),
        replace(case, ranks=4),
        replace(case, precision="bf16"),
        replace(case, threads=2),
        replace(case, model=replace(SMALL, batch=8)),
        replace(case, options={**case.options, "overlap": False}),
    ]
    assert len({other.key() for other in [case, *changed]}) == len(changed) + 1


def test_a_key_does_not_depend_on_the_order_of_options() -> None:
    case = small_case()
    assert replace(case, options=dict(reversed(list(case.options.items())))).key() == case.key()


def test_a_key_goes_on_where_an_option_was_added_at_its_default() -> None:
    """The key as it was written when single had these options and no others."""
    of_before = (
        '{"backend":"gloo","device":"cpu","model":{"batch":4,"heads":2,"kv_heads":1,"layers":2,"mlp_width":32,'
        '"sequence":8,"vocabulary":32,"width":16},"options":{"accumulate":1,"checkpoint":"none","clip":1.0,'
        '"compile":"none","learning_rate":0.0003,"loader_delay_ms":0.0,"lr_rule":"base","lr_warm_up":0,"workers":1},'
        '"precision":"fp32","ranks":1,"strategy":"single","threads":1,"version":2}'
    )
    assert small_case("single", ranks=1).key() == of_before


def test_a_key_has_what_only_some_shapes_have() -> None:
    scaling = RopeScaling(kind="linear", factor=2.0)
    key = json.loads(replace(small_case(), model=replace(SMALL, head_dim=24, is_tied=True, rope_scaling=scaling)).key())
    assert key["model"].keys() - json.loads(small_case().key())["model"].keys() == {
        "head_dim",
        "is_tied",
        "rope_scaling",
    }
    assert key["model"]["rope_scaling"]["factor"] == 2.0


def test_a_case_with_a_shape_of_a_file_is_read_again_as_it_was_written() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    model = replace(SMALL, head_dim=24, norm_epsilon=1e-6, rope_theta=1e4, rope_scaling=scaling, is_tied=True)
    case = replace(small_case(), model=model)
    again = msgspec.json.decode(msgspec.json.encode(case), type=Case)
    assert again == case
    assert again.key() == case.key()
    assert {"head_dim=24", "norm_epsilon=1e-06", "rope_theta=10000", "rope_scaling=llama3:8:1:4:8192"} < set(
        settings_of(case)
    )


def test_a_strategy_that_is_no_more_still_has_its_key() -> None:
    case = replace(small_case(), strategy="gone")
    assert json.loads(case.key())["options"] == case.options


def test_the_weak_baseline_has_one_ranks_work_and_the_strong_one_all_of_it() -> None:
    case = small_case(ranks=2)
    weak, strong = one_rank_baseline(case, "weak"), one_rank_baseline(case, "strong")
    assert weak is not None
    assert strong is not None
    assert (weak.strategy, weak.ranks, weak.shape.batch) == ("single", 1, 2)
    assert (strong.strategy, strong.ranks, strong.shape.batch) == ("single", 1, 4)
    assert "overlap" not in weak.options


def test_a_fault_is_read_from_its_text() -> None:
    assert parse_fault("hang@1:3", ranks=2, steps=4) == Fault(kind="hang", rank=1, step=3)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("hang", "does not have the form KIND@RANK:STEP"),
        ("sing@0:1", "KIND is one of raise"),
        ("kill@2:0", "ranks are 0 to 1"),
        ("kill@1:4", "steps are 0 to 3, warm-up included"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(text: str, part: str) -> None:
    with pytest.raises(Misuse, match=re.escape(part)):
        parse_fault(text, ranks=2, steps=4)


def half_case(strategy: str, *, ranks: int = 2, **options: OptionValue) -> Case:
    """A case in bf16 as a command line makes it. options: those that the user sets."""
    defaults = make_case(strategy, ranks, precision="bf16", options={**defaults_of(strategy), **options})
    return replace(defaults, options=spec_of(strategy).settled(defaults))


def defaults_of(strategy: str) -> dict[str, OptionValue]:
    return {option.name: option.default for option in spec_of(strategy).options}


def test_the_key_of_a_case_in_bf16_names_its_weights_unless_they_are_autocast() -> None:
    assert json.loads(half_case("fsdp").key())["options"]["weights"] == "bf16_compute"
    assert "weights" not in json.loads(half_case("fsdp", weights="autocast").key())["options"]
    assert "weights" not in json.loads(half_case("ddp").key())["options"]


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
@pytest.mark.parametrize("weights", ["autocast", "bf16_compute"])
def test_a_baseline_has_the_weights_of_its_case(strategy: str, weights: str) -> None:
    case = half_case(strategy, weights=weights)
    baseline = one_rank_baseline(case, "weak")
    assert baseline is not None
    assert baseline.options["weights"] == weights
    assert scaling_between(case, baseline) == "weak"
    other = replace(baseline, options={**baseline.options, "weights": "bf16"})
    with pytest.raises(Misuse, match=f"is bf16, the run's is {weights}; .*: set option weights={weights} in"):
        scaling_between(case, other)


def test_the_baseline_of_rounded_reductions_reduces_nothing() -> None:
    baseline = one_rank_baseline(half_case("fsdp", grad_dtype="bf16"), "weak")
    assert baseline is not None
    assert baseline.options["grad_dtype"] == "fp32"


def test_a_baseline_of_several_ranks_reduces_in_the_precision_of_the_run() -> None:
    rounded = half_case("fsdp", ranks=4, grad_dtype="bf16")
    assert scaling_between(rounded, replace(rounded, ranks=2, model=replace(rounded.shape, batch=4))) == "weak"
    with pytest.raises(Misuse, match="option grad_dtype is fp32, the run's is bf16"):
        scaling_between(rounded, half_case("fsdp", ranks=2))


def test_a_baseline_whose_weights_are_bf16_has_gradients_of_the_run() -> None:
    case = half_case("ddp", weights="bf16", grad_dtype="bf16")
    baseline = one_rank_baseline(case, "strong")
    assert baseline is not None
    assert scaling_between(case, baseline) == "strong"
    other = replace(baseline, options={**baseline.options, "grad_dtype": "fp32"})
    with pytest.raises(Misuse, match="option grad_dtype is fp32, the run's is bf16"):
        scaling_between(case, other)


def test_a_case_from_before_weights_could_be_chosen_has_a_baseline_under_autocast() -> None:
    case = half_case("fsdp")
    old = replace(case, options={name: value for name, value in case.options.items() if name != "weights"})
    baseline = one_rank_baseline(old, "weak")
    assert baseline is not None
    assert baseline.options["weights"] == "autocast"
    assert settings_of(old)[0] == "weights=autocast"
    assert not any(word.startswith("weights=") for word in settings_of(case))


def test_reduce_dtype_is_still_read_and_keeps_its_place_in_keys() -> None:
    options = parse_options(spec_of("fsdp"), ["reduce_dtype=bf16"])
    assert options["grad_dtype"] == "bf16"
    case = half_case("fsdp", grad_dtype="bf16")
    assert json.loads(case.key())["options"]["reduce_dtype"] == "bf16"
    old = {name: value for name, value in case.options.items() if name != "grad_dtype"} | {"reduce_dtype": "bf16"}
    assert replace(case, options=old).key() == case.key()
