"""docs/exercises.md: its commands print what it shows, its arithmetic is right, and its table is the cost model's."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import FINE
from workloads.probes.cost_model import ALGORITHMS, cost

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "exercises.md").read_text()


def _blocks() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each command with the lines that the page shows below it."""
    for block in re.findall(r"(?:^ {4}.*\n)+", TEXT, re.MULTILINE):
        command, *shown = [line.strip() for line in block.splitlines()]
        yield command, tuple(shown)


BLOCKS = list(_blocks())


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_command_prints_what_the_page_shows(
    command: str, shown: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nothing")
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    assert program == "observatory"
    assert main.run(words) == FINE
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert shown
    assert [line for line in shown if not any(_begins(line, other) for other in printed)] == []


def _begins(shown: str, printed: str) -> bool:
    """Whether a line is printed, or begins one that goes on after a word or number."""
    return printed == shown or (printed.startswith(shown) and printed[len(shown)] in " :;")


def test_each_exercise_has_a_command_or_arithmetic() -> None:
    sections = re.split(r"^#{2,3} ", TEXT, flags=re.MULTILINE)[1:]
    exercises = [section for section in sections if len(section.splitlines()) > 2]
    assert len(exercises) >= 13
    for section in exercises:
        assert "    observatory " in section or "```text" in section, section.splitlines()[0]
    assert len(BLOCKS) >= 20


# Arithmetic.

OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _value(node: ast.expr) -> float:
    """Return what an expression of numbers, brackets and the four operations is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    assert isinstance(node, ast.BinOp), ast.dump(node)
    return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))


def _sums() -> Iterator[tuple[str, str]]:
    for block in re.findall(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            left, sign, right = line.partition("#")[0].partition(" = ")
            assert sign, line
            yield left, right.strip()


def test_every_sum_is_right_to_the_last_digit_that_it_shows() -> None:
    sums = list(_sums())
    assert len(sums) >= 40
    for expression, shown in sums:
        exponent = Decimal(shown).as_tuple().exponent
        assert isinstance(exponent, int)
        value = _value(ast.parse(expression, mode="eval").body)
        assert abs(value - float(shown)) <= 0.5001 * 10.0**exponent, f"{expression} = {value}, not {shown}"


def test_a_wrong_sum_would_be_seen() -> None:
    assert _value(ast.parse("(16 - 1) / (16 + 3)", mode="eval").body) == pytest.approx(15 / 19)
    with pytest.raises(AssertionError):
        _value(ast.parse("abs(1)", mode="eval").body)


def test_the_methods_of_all_reduce_are_those_of_the_cost_model() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", TEXT, re.MULTILINE)
    assert [name for name, *_ in rows] == list(ALGORITHMS)
    for name, *figures in rows:
        of_model = cost(next(each for each in ALGORITHMS if each == name), 8, 250_000_000, 4)
        expected = [of_model.steps, of_model.critical_bytes / 1e9, of_model.total_bytes / 1e9]
        assert [float(figure) for figure in figures] == pytest.approx(expected), name
