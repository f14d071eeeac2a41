"""Whatever a panel's text names in backquotes exists: a command with its options, a key of suite files, a page."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from bench.cli.main import observatory
from bench.suite.form.tables import SuiteTable
from tests.dashboards.boards import Panel, all_boards


def _own_text(panel: Panel) -> str:
    """A panel's text without the definitions of its metrics."""
    paragraphs = panel.document["description"].split("\n\n")
    return " ".join(text for text in paragraphs if not re.match("`[a-z0-9_]+`: ", text))


NAMED = sorted(
    {
        name
        for dashboard in all_boards()
        for text in (dashboard.document["description"], *(_own_text(panel) for panel in dashboard.all_panels))
        for name in re.findall(r"`([^`]+)`", text)
    }
)
TITLES = {dashboard.title for dashboard in all_boards()}
OF_PROMETHEUS = {"--enable-feature=exemplar-storage"}


def _leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words call, and the words after it."""
    command: click.Command = observatory
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    return command, words


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", NAMED)
def test_what_a_panel_names_exists(name: str) -> None:
    if name.startswith("observatory "):
        command, words = _leaf(shlex.split(name)[1:])
        assert {word for word in words if word.startswith("--")} <= _options(command)
    elif name.startswith("--"):
        run, _ = _leaf(["run"])
        assert name in OF_PROMETHEUS or name.split()[0] in _options(run)
    else:
        assert name in TITLES | set(SuiteTable.__struct_fields__)


def test_a_key_that_suite_files_refuse_is_seen() -> None:
    assert "period" not in SuiteTable.__struct_fields__
    assert "period_hours" in NAMED
