"""What clusters report of their nodes and cannot be: counted, and said once."""

from __future__ import annotations

from collections import Counter


class Implausible:
    """What a cluster gave that cannot be: how often, by question, and an example of each, for people.

    cluster: its name for people, for example "Slurm".
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, question: str, example: str) -> None:
        """Count an answer."""
        self.counts[question] += 1
        self._examples.setdefault(question, example)

    def number(self, question: str, value: object, least: int, most: int, node: str) -> int | None:
        """Return a number that is in its range; else count it, and return None."""
        text = str(value)
        if text.isdecimal() and least <= int(text) <= most:
            return int(text)
        self.out_of_range(question, value, least, most, node)
        return None

    def out_of_range(self, question: str, value: object, least: int, most: int, node: str) -> None:
        """Count a number that is out of its range."""
        self.add(question, f"{question} {value} of node {node} (plausible: {least} to {most})")

    def lines(self) -> list[str]:
        """Return a line for each question that was answered implausibly."""
        return [f"{self._cluster}: {text} is left out{self._more(name)}" for name, text in self._examples.items()]

    def _more(self, question: str) -> str:
        others = self.counts[question] - 1
        return f", and {others} more of {question}" if others else ""
