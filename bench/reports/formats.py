"""The forms a result is printed in: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Form of the result.",
)

DETAILS = click.option("--details", "has_details", is_flag=True, help="All rows and notes of the table.")


def print_json(value: object) -> None:
    """Print the value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print the rows under the columns' names."""
    writer = csv.DictWriter(sys.stdout, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


@contextmanager
def to_reader() -> Iterator[None]:
    """Print for whoever reads standard output, and go on when they have enough: `observatory run ddp | head -3`."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich ends the program where the pipe is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
