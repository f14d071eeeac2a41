"""Completion by shells: click's own, and what `NAME=VALUE` needs in bash."""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

PROGRAM = "observatory"
VARIABLE = "_OBSERVATORY_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

_PLAIN = "COMPREPLY+=($value)"
_UNFINISHED = """COMPREPLY+=($value)
            [[ $value == *= ]] && compopt -o nospace 2> /dev/null"""


class BashWithValues(BashComplete):
    """bash parts words at "=", so that `--option overlap=t` reaches us as `overlap`, `=` and `t`.

    They are put together again, and the answer is of the last part alone, which is what bash replaces. No blank
    follows a name that wants a value.
    """

    source_template = BashComplete.source_template.replace(_PLAIN, _UNFINISHED)

    def get_completion_args(self) -> tuple[list[str], str]:
        words = ["".join(split_arg_string(word)) for word in os.environ["COMP_WORDS"].split("\n")]
        last = int(os.environ["COMP_CWORD"])
        words = [*words[1:last], words[last] if last < len(words) else ""]
        joined: list[str] = []
        for word in words:
            follows = bool(joined) and (word == "=" or joined[-1].endswith("="))
            if follows:
                joined[-1] += word
            else:
                joined.append(word)
        return joined[:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.rpartition('=')[2] if _is_value(item) else item.value}"


def _is_value(item: CompletionItem) -> bool:
    return "=" in item.value and not item.value.endswith("=")


def register() -> None:
    """Let bash be answered by ours."""
    add_completion_class(BashWithValues)


def script(shell: str, program: click.Command) -> str:
    """What the shell reads to complete the program's words."""
    register()
    completer = get_completion_class(shell)
    assert completer is not None, "click has each of SHELLS"
    return completer(program, {}, PROGRAM, VARIABLE).source()
