"""CPU time of a choice among all strategies for 405B on 2,048 GPUs, and of a process that only imports what it needs.

    python -m tests.benchmarks.scripts.choosing

prints JSON: CPU seconds of each part, how many setups there are, and how many were predicted in full.
"""

import json
import time
from dataclasses import replace

from bench.analysis.choosing.candidates import candidates
from bench.analysis.choosing.explain import explain
from bench.analysis.choosing.ground import ground_on
from bench.analysis.choosing.question import Question
from bench.machine.machines.machine_file import read_machine
from workloads.cost_models.shape import PRESETS


def main() -> None:
    imported_s = time.process_time()
    machine = read_machine("h100x8x256")
    ground = ground_on(machine, machine.gpus, "bf16")
    question = Question(
        shape=replace(PRESETS["405b"], sequence=8192, batch=2048),
        ranks=machine.gpus,
        nodes=ground.nodes,
        device="cuda",
        backend="nccl",
        precision="bf16",
    )
    bases, fixed = question.bases()
    ranking = candidates(bases, ground, fixed=fixed)
    ranked_s = time.process_time()
    explain(ranking)
    explained_s = time.process_time()
    figures = {
        "import_s": imported_s,
        "candidates_s": ranked_s - imported_s,
        "explanation_s": explained_s - ranked_s,
        "total_s": explained_s,
        "setups": ranking.setups_count,
        "predicted_in_full": ranking.predicted_count,
    }
    print(json.dumps(figures, indent=2))  # The result of this program.


if __name__ == "__main__":
    main()
