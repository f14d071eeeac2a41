"""The forms a result is printed in: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence

import click

FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Form of the result.",
)


def print_json(value: object) -> None:
    """Print the value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Print the rows under the names of the first one's columns."""
    if rows:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
