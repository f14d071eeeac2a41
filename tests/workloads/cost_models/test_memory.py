"""States by the papers' accounts, against the figures that they published."""

from __future__ import annotations

from fractions import Fraction

import pytest

from workloads.cost_models.memory import ZeroStage, paper_states
from workloads.cost_models.terms import States

STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
BILLION = 10**9


def total_bytes(states: States) -> int:
    return states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes


def total_gb(parameters: int, stage: ZeroStage, data_ranks: int, model_ranks: int = 1) -> float:
    return total_bytes(paper_states(parameters, stage=stage, data_ranks=data_ranks, model_ranks=model_ranks)) / 1e9


@pytest.mark.parametrize(
    ("stage", "bytes_each"), [(0, "16"), (1, "4.1875"), (2, "2.21875"), (3, "0.25")], ids=lambda value: str(value)
)
def test_bytes_of_a_parameter_on_64_ranks(stage: ZeroStage, bytes_each: str) -> None:
    parameters = 1024
    assert total_bytes(paper_states(parameters, stage=stage, data_ranks=64)) == parameters * Fraction(bytes_each)


@pytest.mark.parametrize(
    ("stage", "data_ranks", "published_gb"),
    [
        (0, 1, 120),
        (1, 4, 52.5),
        (2, 4, 41.3),
        (3, 4, 30),
        (1, 64, 31.4),
        (2, 64, 16.6),
        (3, 64, 1.88),
        (1, 1024, 30.1),
        (2, 1024, 15.1),
        (3, 1024, 0.12),
    ],
)
def test_zeros_table_of_a_model_of_7_5_billion(stage: ZeroStage, data_ranks: int, published_gb: float) -> None:
    """Rajbhandari et al. 2020, table 1, and figure 1 for the three on 64 ranks."""
    digit = 10.0 ** -len(str(published_gb).partition(".")[2])
    assert total_gb(7_500_000_000, stage, data_ranks) == pytest.approx(published_gb, abs=0.51 * digit)


def test_seven_billion_parameters_take_112_gb() -> None:
    assert total_gb(7 * BILLION, stage=0, data_ranks=1) == 112


def test_zero_3_leaves_0_34_gb_of_175_billion_parameters_on_each_of_1024_ranks() -> None:
    states = paper_states(175 * BILLION, stage=3, data_ranks=1024)
    assert states.parameters_bytes / 1e9 == pytest.approx(0.34, abs=0.005)


@pytest.mark.parametrize(("stage", "fits"), [(0, False), (1, True), (2, True), (3, True)])
def test_gpt_3_on_8_x_8_x_16_ranks_fits_80_gb_beside_40_gb_of_activations_only_if_divided(
    stage: ZeroStage, fits: bool
) -> None:
    """Tensors over 8 ranks and layers over 8, 16 data ranks."""
    assert (total_gb(175 * BILLION, stage, data_ranks=16, model_ranks=64) + 40 <= 80) is fits


def test_gpt_3_on_8_x_8_x_16_ranks_takes_43_75_gb_undivided() -> None:
    assert total_gb(175 * BILLION, stage=0, data_ranks=16, model_ranks=64) == 43.75


@pytest.mark.parametrize(("bytes_each", "published_gb"), [((2, 2, 4), 1400), ((2, 2, 12), 2800)])
def test_a_replica_of_175_billion_by_each_account(bytes_each: tuple[int, int, int], published_gb: int) -> None:
    states = paper_states(175 * BILLION, stage=0, data_ranks=8, bytes_each=bytes_each)
    assert total_bytes(states) == published_gb * BILLION


@pytest.mark.parametrize("stage", STAGES)
def test_one_rank_has_nobody_to_divide_with(stage: ZeroStage) -> None:
    alone = paper_states(1000, stage=stage, data_ranks=1)
    assert alone == States(parameters_bytes=2000, gradients_bytes=2000, optimizer_bytes=12000)


@pytest.mark.parametrize(
    ("stage", "divided"),
    [(0, set()), (1, {"optimizer"}), (2, {"optimizer", "gradients"}), (3, {"optimizer", "gradients", "parameters"})],
)
def test_a_stage_divides_its_parts_and_leaves_the_others_whole(stage: ZeroStage, divided: set[str]) -> None:
    whole, shared = (paper_states(1000, stage=stage, data_ranks=ranks) for ranks in (1, 10))
    for part in ("parameters", "gradients", "optimizer"):
        ratio = 10 if part in divided else 1
        assert getattr(whole, f"{part}_bytes") == ratio * getattr(shared, f"{part}_bytes")


def test_a_share_is_rounded_up_so_that_no_byte_is_lost() -> None:
    share = paper_states(1001, stage=3, data_ranks=3, model_ranks=8)
    assert 2 * 1001 <= 24 * share.parameters_bytes < 2 * 1001 + 24


@pytest.mark.parametrize(("data_ranks", "model_ranks", "named"), [(0, 1, "data_ranks"), (1, 0, "model_ranks")])
def test_no_ranks_are_refused(data_ranks: int, model_ranks: int, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} is 0; it must be 1 or more"):
        paper_states(1, stage=0, data_ranks=data_ranks, model_ranks=model_ranks)
