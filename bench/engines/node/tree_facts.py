"""Describes a source tree to another version of this program, in one line of JSON whose form is frozen.

Started as `python -P -m bench.engines.node.tree_facts STRATEGY DEVICE` with the tree first on Python's path. The name
of this module, its two arguments and the keys of contract 1 never change: a later contract adds keys and raises the
number, and a reader ignores keys that it does not know.
"""

from __future__ import annotations

import json
import sys

import bench
from bench.engines.wire.frames import PROTOCOL
from workloads.registry import SPECS

CONTRACT = 1


def main() -> None:
    """Print the line.

    folder: the folder of the package `bench`. protocol: the protocol between runner and agent. version: the version of
    the strategy's definition on the device; null if the tree lacks the strategy. options: the strategy's options, each
    with its default.
    """
    strategy, device = sys.argv[1:]
    specs = [spec for spec in SPECS if spec.name == strategy]
    facts = {
        "contract": CONTRACT,
        "folder": str(bench.__path__[0]),
        "protocol": PROTOCOL,
        "version": specs[0].version_on(device) if specs else None,  # type: ignore[arg-type]  # As the runner has it.
        "options": {option.name: option.default for option in specs[0].options} if specs else {},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
