"""Expressions combine as PromQL's precedence has it, whatever they are made of."""

from dashboards import promql


def test_a_divisor_per_label_leaves_the_dividend_its_own_labels() -> None:
    assert promql.divide("a", "b", on=("job", "gpu")) == "a / on (job, gpu) group_left () b"
    assert promql.divide("a", "b") == "a / b"


def test_a_divisor_that_may_be_zero_is_bracketed() -> None:
    assert promql.divide("a", promql.positive("b")) == "a / (b > 0)"


def test_an_expression_of_alternatives_is_compared_as_a_whole() -> None:
    assert promql.above(promql.either("a", "b"), 0.1) == "((\na\n)\nor\n(\nb\n)) > 0.1"


def test_a_limit_per_label_leaves_what_exceeds_it_its_own_labels() -> None:
    assert promql.exceeds(promql.age("a"), promql.times(2, "b"), on=("suite",)) == (
        "time() - a > on (suite) group_left () 2 * b"
    )


def test_labels_of_an_info_go_to_the_series_that_it_alone_belongs_to() -> None:
    assert promql.bearing("a", "i", ("run", "rank"), on=("gpu",), called="work", between=" rank ").splitlines() == [
        "(",
        "label_join((a) * on (gpu) group_left (run, rank) (i and on (gpu) count by (gpu) (i) == 1),"
        ' "work", " rank ", "run", "rank")',
        ")",
        "or",
        "(",
        "(a)",
        "unless on (gpu) (count by (gpu) (i) == 1)",
        ")",
    ]
