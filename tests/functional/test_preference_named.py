"""Every pair loss answers to its name with the options it takes."""

from typing import get_args

import pytest

from posttrain.functional import preference_pairs as losses
from posttrain.functional.preference_named import RELATIVE, PairLoss, named_loss
from tests.golden.fixtures_preference import pairs

PAIRS = pairs()
EXPECTED = {
    "sigmoid": losses.dpo(PAIRS, beta=0.3),
    "cdpo": losses.cdpo(PAIRS, beta=0.3, flip=0.2),
    "robust": losses.robust(PAIRS, beta=0.3, flip=0.2),
    "ipo_sum": losses.ipo_sum(PAIRS, tau=0.3),
    "ipo_average": losses.ipo_average(PAIRS, tau=0.3),
    "length_normalised": losses.dpo_normalised(PAIRS, beta=0.3),
    "hinge": losses.hinge(PAIRS, beta=0.3),
    "apo_zero": losses.apo_zero(PAIRS, beta=0.3),
    "apo_down": losses.apo_down(PAIRS, beta=0.3),
    "nca": losses.nca(PAIRS, beta=0.3),
    "bco_pair": losses.bco_pair(PAIRS, beta=0.3),
    "sppo": losses.sppo(PAIRS, beta=0.3),
    "exo": losses.exo(PAIRS, beta=0.3, smoothing=0.01),
}


def test_every_name_has_a_loss():
    assert set(get_args(PairLoss)) == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_is_its_function(name):
    found = named_loss(PAIRS, name, beta=0.3, flip=0.2, smoothing=0.01)
    assert EXPECTED[name].tolist() == found.tolist()


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_losses_see_differences_only(name):
    shifted = pairs(chosen=PAIRS.chosen + 3 * PAIRS.chosen_count, rejected=PAIRS.rejected + 3 * PAIRS.rejected_count)
    even = pairs(chosen=PAIRS.chosen + 3, rejected=PAIRS.rejected + 3)
    moved = shifted if name == "length_normalised" else even
    assert named_loss(PAIRS, name, beta=0.3).tolist() == pytest.approx(named_loss(moved, name, beta=0.3).tolist())


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no pair loss is called 'dpo2'"):
        named_loss(PAIRS, "dpo2", beta=0.1)
