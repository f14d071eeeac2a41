"""`observatory runbook`: what an alert means, what to look at and what to do, without a network."""

from __future__ import annotations

import difflib

import click

from bench.errors import Misuse


@click.command(name="runbook")
@click.argument("alert", required=False)
def command(alert: str | None) -> None:
    """Print the runbook of an alert, or without a name the list of all alerts.

    \b
    Example:
      observatory runbook GpuLost
    """
    from dashboards.alerts.runbooks import meaning, runbooks

    texts = runbooks()
    if alert is None:
        width = max(map(len, texts))
        for name, text in texts.items():
            click.echo(f"{name:<{width}}  {meaning(text)}")
        return
    names = {_plain(name): name for name in texts}
    known = names.get(_plain(alert))
    if known is None:
        near = difflib.get_close_matches(_plain(alert), names, n=1)
        hint = f'; did you mean "{names[near[0]]}"?' if near else ""
        raise Misuse(f'there is no runbook of "{alert[:60]}"{hint} (`observatory runbook` lists all)')
    click.echo(texts[known], nl=False)


def _plain(name: str) -> str:
    """Return an alert's name without what distinguishes ways to write it: GpuLost, gpu-lost, gpu-lost.md."""
    return name.removesuffix(".md").replace("-", "").replace("_", "").lower()
