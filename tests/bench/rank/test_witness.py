"""What a rank witnesses tells equal things from different ones."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.rank.convergence import fingerprint_of_weights, fingerprints_of_sequences, sketch_of
from bench.rank.evidence import EvidenceFile, StepEvidence, read_evidence
from tests.workloads.training.setups import SMALL, small_setup
from workloads.core.trainer import make_model


def test_equal_sequences_have_equal_fingerprints_and_others_others() -> None:
    one, other, again = fingerprints_of_sequences(torch.tensor([[1, 2, 3], [1, 2, 4], [1, 2, 3]]))
    assert one == again
    assert one != other


def test_a_last_bit_of_one_weight_changes_the_fingerprint() -> None:
    model = make_model(small_setup())
    before = fingerprint_of_weights(model, SMALL.parameters())
    assert before == fingerprint_of_weights(make_model(small_setup()), SMALL.parameters())
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nextafter(model.head.weight[0, 0], torch.tensor(9.0))
    assert fingerprint_of_weights(model, SMALL.parameters()) != before


def test_two_elements_that_have_changed_places_change_the_fingerprint() -> None:
    model = make_model(small_setup())
    before = fingerprint_of_weights(model, SMALL.parameters())
    with torch.no_grad():
        model.head.weight[0, :2] = model.head.weight[0, :2].flip(0)
    assert fingerprint_of_weights(model, SMALL.parameters()) != before


def test_a_rank_that_holds_only_some_weights_has_no_fingerprint() -> None:
    assert fingerprint_of_weights(make_model(small_setup()).head, SMALL.parameters()) is None


def test_a_sketch_tells_a_sum_from_a_mean_a_sign_from_another_and_an_order_from_another() -> None:
    gradient = torch.arange(1.0, 36.0).view(5, 7)
    norm, projection = sketch_of("head.weight", gradient)
    assert sketch_of("head.weight", gradient) == (norm, projection)
    assert sketch_of("head.weight", 2 * gradient)[0] == 2 * norm
    assert sketch_of("head.weight", -gradient) == (norm, -projection)
    assert sketch_of("head.weight", gradient.flip(0))[1] != projection


def test_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    steps = [
        StepEvidence(step=0, loss=4.5, gradients={"head.weight": (1.0, 0.5)}),
        StepEvidence(step=1, loss=None, is_finite=False),
    ]
    file = EvidenceFile(tmp_path, 3)
    for evidence in steps:
        file.write(evidence)
    file.close()
    assert read_evidence(tmp_path, 3) == steps
