"""What a change came from, by hand."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.diff import ItemChange, mean_ns
from collectors.traces.analyzers.step_division import Item, ItemTime

GEMM = Item(part="compute", name="gemm")

amounts = st.one_of(
    st.none(),
    st.builds(
        lambda hidden, own, count: ItemTime(exposed_ns=own, work_ns=own + hidden, count=count),
        st.fractions(0, 1000, max_denominator=7),
        st.integers(0, 1000),
        st.fractions(0, 20, max_denominator=6),
    ),
)


def change(before: ItemTime | None, after: ItemTime | None) -> ItemChange:
    return ItemChange(item=GEMM, before=before, after=after)


def effects(found: ItemChange) -> tuple[int, int, int]:
    return found.count_effect_ns, found.duration_effect_ns, found.hiding_effect_ns


def amount(exposed_ns: int, work_ns: int, count: int) -> ItemTime:
    return ItemTime(exposed_ns=exposed_ns, work_ns=work_ns, count=count)


def test_running_twice_as_often_is_an_effect_of_the_count() -> None:
    assert effects(change(amount(100, 100, 1), amount(200, 200, 2))) == (100, 0, 0)


def test_running_twice_as_long_is_an_effect_of_the_duration() -> None:
    assert effects(change(amount(100, 100, 1), amount(200, 200, 1))) == (0, 100, 0)


def test_being_hidden_no_more_is_an_effect_of_hiding() -> None:
    assert effects(change(amount(0, 100, 1), amount(100, 100, 1))) == (0, 0, 100)


def test_what_both_do_is_parted_at_the_mean_of_both_sides() -> None:
    # 1 of 100 becomes 2 of 200: one more at 150 in the mean, 100 longer for 1.5 in the mean.
    assert effects(change(amount(100, 100, 1), amount(400, 400, 2))) == (150, 150, 0)


def test_what_is_new_or_gone_is_an_effect_of_the_count() -> None:
    new, gone = change(None, amount(50, 70, 2)), change(amount(50, 70, 2), None)
    assert (new.seen, new.change_ns, effects(new)) == ("new", 50, (70, 0, -20))
    assert (gone.seen, gone.change_ns, effects(gone)) == ("gone", -50, (-70, 0, 20))


def test_the_mean_of_what_never_started_is_absent() -> None:
    assert mean_ns(amount(50, 50, 0)) is None
    assert mean_ns(None) is None
    assert mean_ns(ItemTime(exposed_ns=50, work_ns=Fraction(50), count=Fraction(5, 2))) == 20


@given(amounts, amounts)
def test_the_effects_add_up_to_the_change(before: ItemTime | None, after: ItemTime | None) -> None:
    found = change(before, after)
    assert sum(effects(found)) == found.change_ns == found.after_ns - found.before_ns
