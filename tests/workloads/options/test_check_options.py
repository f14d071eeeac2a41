"""What a check adds to a case's options can be read from them again, and no spec takes it from a command line."""

from __future__ import annotations

import pytest

from bench.case import parse_options
from bench.errors import Misuse
from tests.workloads.training.setups import small_setup
from workloads.options import Check, check_of
from workloads.registry import SPECS, spec_of

CHECK = Check(
    epoch_steps=5, data_ranks=3, has_batch_norm=True, is_reversed=True, mistakes=("learning_rate", "sampler_epoch")
)


def test_a_check_is_read_from_the_options_that_it_makes() -> None:
    setup = small_setup(options=CHECK.options())
    assert check_of(setup) == CHECK


def test_a_case_without_such_options_is_no_check() -> None:
    assert check_of(small_setup()) is None


def test_no_spec_lists_them_so_that_no_command_line_sets_them() -> None:
    listed = {option.name for spec in SPECS for option in spec.options}
    assert not listed & CHECK.options().keys()
    with pytest.raises(Misuse, match='ddp has no option "check_mistakes"'):
        parse_options(spec_of("ddp"), ["check_mistakes=learning_rate"])
