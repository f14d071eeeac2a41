"""`observatory runbook`: what an alert means, what to look at and what to do, without a network."""

from __future__ import annotations

from pathlib import Path

import click

import dashboards
from bench.errors import Misuse
from collectors.settings_file import near_name


@click.command(name="runbook")
@click.argument("alert", required=False)
def command(alert: str | None) -> None:
    """Print the runbook of an alert; without a name, list all alerts.

    \b
    Example:
      observatory runbook GpuLost
    """
    texts = runbooks()
    if alert is None:
        width = max(map(len, texts))
        for name, text in texts.items():
            meaning = " ".join(text.partition("## What it means")[2].partition("\n## ")[0].split())
            first_sentence = meaning.partition(". ")[0].rstrip(".") + "."
            click.echo(f"{name:<{width}}  {first_sentence}")
        return
    names = {_plain(name): name for name in texts}
    known = names.get(_plain(alert))
    if known is None:
        near = near_name(_plain(alert), names)
        hint = "" if near is None else f'; did you mean "{names[near]}"?'
        raise Misuse(f'there is no runbook of "{alert[:60]}"{hint} (`observatory runbook` lists all)')
    click.echo(texts[known], nl=False)


def runbooks() -> dict[str, str]:
    """Return the text of each runbook by the name of its alert, which is its heading.

    They are in docs/runbooks in a checkout, and in dashboards/runbooks in an installed wheel (see pyproject.toml).
    """
    installed = Path(dashboards.__file__).with_name("runbooks")
    folder = installed if installed.is_dir() else installed.parents[1] / "docs" / "runbooks"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]
    return {text.partition("\n")[0].removeprefix("# "): text for text in texts}


def _plain(name: str) -> str:
    """Return an alert's name in one form for all its spellings: GpuLost, gpu-lost, gpu-lost.md."""
    return name.removesuffix(".md").replace("-", "").replace("_", "").lower()
