"""Implausible values that clusters report about their nodes: counted, and reported once."""

from __future__ import annotations

from collections import Counter


class ImplausibleAnswers:
    """A cluster's implausible answers: their number by query, and an example of each for the user.

    cluster: its name in messages, for example "Slurm".
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, question: str, example: str) -> None:
        """Count an implausible answer."""
        self.counts[question] += 1
        self._examples.setdefault(question, example)

    def number(self, question: str, value: object, least: int, most: int, node: str) -> int | None:
        """Return a number if it is in its range; otherwise count it, and return None."""
        text = str(value)
        if text.isdecimal() and least <= int(text) <= most:
            return int(text)
        self.out_of_range(question, value, least, most, node)
        return None

    def out_of_range(self, question: str, value: object, least: int, most: int, node: str) -> None:
        """Count a number that is out of its range."""
        self.add(question, f"{question} {value} of node {node} (plausible: {least} to {most})")

    def lines(self) -> list[str]:
        """Return a line for each query with implausible answers."""
        return [f"{self._cluster}: {text} is left out{self._more(name)}" for name, text in self._examples.items()]

    def _more(self, question: str) -> str:
        more = self.counts[question] - 1
        return f", and {more} more of {question}" if more else ""
