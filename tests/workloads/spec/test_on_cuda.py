"""What specs refuse of a GPU, told without one: what its backends cannot do, and what its compiler must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workloads.probes.small_probes import small_probe
from tests.workloads.training.setups import ranks_of, small_setup
from workloads.deepspeed.spec import not_installed
from workloads.options import too_old_to_defer
from workloads.pipeline_parallel.spec import InterleavedSpec
from workloads.registry import SPECS, spec_of
from workloads.spec import Backend, Device, OptionValue, StrategySpec

TRAINING = [spec for spec in SPECS if spec.kind == "training" and (spec.name != "deepspeed" or not not_installed())]
NO_MESSAGES = "backend gloo cannot send GPU tensors from rank to rank; use --backend nccl, or --device cpu"


def by_name(spec: StrategySpec) -> str:
    return spec.name


@pytest.mark.parametrize("spec", TRAINING, ids=by_name)
def test_gloo_is_refused_to_gpus_exactly_where_ranks_send_messages(spec: StrategySpec) -> None:
    setup = small_setup(spec.name, ranks=ranks_of(spec), device="cuda", backend="gloo")
    # Messages to servers go through the host's memory by gloo.
    sends = any(each.collective == "send" and each.axis != "server" for each in spec.transfers(setup))
    assert spec.sends_messages(setup) == sends
    assert spec.all_refusals(setup) == ([NO_MESSAGES] if sends else [])


@pytest.mark.parametrize(("name", "sends"), [("collectives", True), ("all_reduce", True), ("matmul", False)])
def test_probes_that_send_messages_are_refused_on_gloo_too(name: str, sends: bool) -> None:
    spec = spec_of(name)
    assert spec.all_refusals(small_probe(spec, ranks=2, device="cuda")) == ([NO_MESSAGES] if sends else [])


def test_collectives_of_gpus_run_on_gloo_without_messages() -> None:
    spec = spec_of("collectives")
    setup = small_probe(spec, ranks=2, device="cuda", options={"collectives": "all_reduce,all_gather"})
    assert spec.all_refusals(setup) == []


@pytest.mark.parametrize("spec", TRAINING, ids=by_name)
def test_nccl_sends_messages_of_gpus(spec: StrategySpec) -> None:
    assert spec.all_refusals(small_setup(spec.name, ranks=ranks_of(spec), device="cuda", backend="nccl")) == []


def test_a_ring_of_one_rank_sends_nothing() -> None:
    assert spec_of("ring_attention").all_refusals(small_setup("ring_attention", device="cuda")) == []


def test_what_is_wrong_on_any_device_is_told_first() -> None:
    setup = small_setup("gpipe", ranks=3, device="cuda")
    assert spec_of("gpipe").all_refusals(setup) == spec_of("gpipe").refusals(setup) != []


IN_GRAPHS = "the graph would contain the block's collectives, and NCCL's Flight Recorder sees none in graphs"
GATHERED = "FSDP2 gathers weights at new addresses each time, so the graph would be recorded again"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("spec", TRAINING, ids=by_name)
def test_graphs_are_refused_where_they_would_be_recorded_anew_or_hide_collectives(
    spec: StrategySpec, mode: str
) -> None:
    because = {
        "zero2": GATHERED,
        "fsdp": GATHERED,
        "hsdp": GATHERED,
        "tensor_parallel": IN_GRAPHS,
        "three_d": IN_GRAPHS,
        "ulysses": IN_GRAPHS,
    }.get(spec.name)
    reasons = refusals_of_mode(spec, mode, "cuda")
    graphs = [reason for reason in reasons if "CUDA graph" in reason]
    assert graphs == (
        []
        if because is None
        else [
            f"option compile is {mode}, which replays a block as a CUDA graph; {because}: use compile=default, or"
            " max-autotune-no-cudagraphs"
        ]
    )


@pytest.mark.parametrize("spec", TRAINING, ids=by_name)
def test_modes_without_graphs_are_as_good_as_any_other(spec: StrategySpec) -> None:
    other = refusals_of_mode(spec, "default", "cuda")
    without_graphs = refusals_of_mode(spec, "max-autotune-no-cudagraphs", "cuda")
    assert [reason.replace("max-autotune-no-cudagraphs", "default") for reason in without_graphs] == other
    on_cpu = refusals_of_mode(spec, "reduce-overhead", "cpu")
    assert [reason.replace("reduce-overhead", "default") for reason in on_cpu] == other


def test_stages_that_fsdp2_divides_are_no_graphs_either() -> None:
    setup = small_setup(
        "three_d",
        ranks=4,
        options={"compile": "reduce-overhead", "tensor_ranks": 1, "data_axis": "fsdp"},
        device="cuda",
        backend="nccl",
    )
    (reason,) = spec_of("three_d").all_refusals(setup)
    assert GATHERED in reason


@pytest.mark.parametrize("strategy", ["tensor_parallel", "ulysses"])
def test_one_rank_has_no_collectives_that_a_graph_could_hide(strategy: str) -> None:
    setup = small_setup(strategy, options={"compile": "reduce-overhead"}, device="cuda", backend="nccl")
    assert spec_of(strategy).all_refusals(setup) == []


@pytest.mark.parametrize(
    ("strategy", "axis"), [("ring_attention", "sequence"), ("gpipe", "stage"), ("three_d", "stage")]
)
def test_messages_go_first_where_they_are_asked_to(strategy: str, axis: str) -> None:
    spec = spec_of(strategy)
    plain = small_setup(strategy, ranks=ranks_of(spec), device="cuda", backend="nccl")
    urgent = replace(plain, options={**plain.options, "high_priority_stream": True})
    assert (spec.high_priority_axes(plain), spec.high_priority_axes(urgent)) == ((), (axis,))
    assert axis in spec.mesh(urgent)
    assert spec.all_refusals(urgent) == []


def test_every_strategy_that_sends_messages_can_send_them_first() -> None:
    for spec in TRAINING:
        setup = small_setup(spec.name, ranks=ranks_of(spec), device="cuda", backend="nccl")
        has_option = any(option.name == "high_priority_stream" for option in spec.options)
        assert has_option == spec.sends_messages(setup)


def test_gloo_has_no_streams_to_prefer() -> None:
    setup = small_setup("gpipe", ranks=2, options={"high_priority_stream": True})
    assert spec_of("gpipe").all_refusals(setup) == [
        "option high_priority_stream is true on gloo, which has no streams; leave it out, or use --backend nccl"
    ]


def test_one_rank_has_no_messages_to_prefer() -> None:
    setup = small_setup("ring_attention", options={"high_priority_stream": True}, device="cuda", backend="nccl")
    assert spec_of("ring_attention").all_refusals(setup) == [
        "option high_priority_stream is true on 1 rank, which sends nothing; leave it out, or use --ranks 2"
    ]


@pytest.mark.parametrize(
    ("strategy", "options", "is_told"),
    [
        ("gpipe", {}, False),
        ("one_f_one_b", {}, False),
        ("interleaved", {}, True),
        ("interleaved", {"defer_receives": True}, False),
        ("zero_bubble", {"variant": "zbv"}, True),
        ("three_d", {}, False),
        ("three_d", {"schedule": "interleaved", "stages": 2}, True),
    ],
)
def test_what_receives_that_begin_early_cost_on_nccl_is_told(
    strategy: str, options: dict[str, OptionValue], is_told: bool
) -> None:
    spec = spec_of(strategy)
    setup = small_setup(strategy, ranks=ranks_of(spec), options=options, device="cuda", backend="nccl")
    assert any("delays the sends behind it" in note for note in spec.notes(setup)) == is_told
    on_gloo = replace(setup, device="cpu", backend="gloo")
    assert not any("delays the sends behind it" in note for note in spec.notes(on_gloo))


def test_receives_can_be_deferred_from_torch_2_13_on() -> None:
    setup = small_setup("interleaved", ranks=2, options={"defer_receives": True})
    assert list(too_old_to_defer(setup, release=(2, 13))) == []
    assert list(too_old_to_defer(setup, release=(3, 0))) == []
    assert list(too_old_to_defer(small_setup("interleaved", ranks=2), release=(2, 12))) == []
    assert list(too_old_to_defer(setup, release=(2, 12))) == [
        "option defer_receives is true, and torch 2.12 has no schedule that defers receives; leave it out, or install"
        " torch 2.13 or newer"
    ]


class LackingSpec(InterleavedSpec):
    def missing_packages(self) -> list[str]:
        return ["an extra is not installed"]


def test_what_only_this_installation_lacks_refuses_nothing_on_a_machine_that_is_not_here() -> None:
    setup = small_setup("interleaved", ranks=2)
    assert LackingSpec().all_refusals(setup) == ["an extra is not installed"]
    assert LackingSpec().all_refusals(setup, is_here=False) == []
    wrong = small_setup("interleaved", ranks=2, options={"stages": 3})
    assert LackingSpec().all_refusals(wrong) == LackingSpec().all_refusals(wrong, is_here=False) != []


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({}, "one_f_one_b, which posts no receive early; leave it out, or use schedule interleaved"),
        (
            {"schedule": "zbv", "stages": 2},
            "zbv, whose receives torch 2.13 defers out of the order of their sends, so losses are silently wrong;"
            " leave it out, or use schedule interleaved",
        ),
    ],
)
def test_receives_are_deferred_of_no_schedule_that_cannot(options: dict[str, OptionValue], because: str) -> None:
    setup = small_setup("three_d", ranks=4, options={"defer_receives": True, **options})
    assert spec_of("three_d").all_refusals(setup) == [f"option defer_receives is true with schedule {because}"]


def refusals_of_mode(spec: StrategySpec, mode: str, device: Device) -> list[str]:
    backend: Backend = "nccl" if device == "cuda" else "gloo"
    setup = small_setup(spec.name, ranks=ranks_of(spec), options={"compile": mode}, device=device, backend=backend)
    return spec.all_refusals(setup)
