"""Lines of files and pages that call `observatory`, parsed by the real command line; nothing is started."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click

from bench.cli import main

_CALL = re.compile(rf"(?<![\w.-])(?:[\w/.]*/)?observatory +((?:{'|'.join(main.COMMANDS)})\b[^`;&|>\n]*)")
_FENCE = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def calls_in(text: str, *, comment: str = "#") -> list[list[str]]:
    """Words of each call behind `observatory`, in lines that are no comment; a backslash joins lines."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith(comment)]
    return [
        shlex.split(found[1].partition(" #")[0]) for line in lines for found in _CALL.finditer(line.replace('"', ""))
    ]


def shell_blocks(page: str) -> str:
    """The blocks of a page that a reader types into a shell."""
    return "\n".join(_FENCE.findall(page))


def parse(words: Sequence[str]) -> click.Context:
    """Return the context of the command that the words call.

    Raises:
        click.UsageError: the command line does not know it so.
    """
    command: click.Command = main.observatory
    context = command.make_context("observatory", list(words))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)
    return context
