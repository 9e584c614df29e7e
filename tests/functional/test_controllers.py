"""Controllers: units of the KL, direction and bounds of the change, values instead of state."""

import pytest
import torch

from posttrain.functional.controllers import AdaptiveEntropy, AdaptiveKL, FixedKL, measure_kl
from tests.golden.fixtures import COUNT, SAMPLES, f64

KL = torch.ones(13, dtype=torch.float64)


def adaptive(**options) -> AdaptiveKL:
    return AdaptiveKL(**({"coefficient": 0.2, "target": 1.0, "horizon": 10.0, "unit": "token-mean"} | options))


@pytest.mark.parametrize(("unit", "expected"), [("sequence-sum", 13 / 4), ("sequence-mean", 1.0), ("token-mean", 1.0)])
def test_units_of_one_nat_per_token(unit, expected):
    assert expected == measure_kl(KL, SAMPLES, COUNT, unit)


def test_token_and_sequence_mean_differ_when_length_and_kl_do():
    values = f64([1, 1, 1, 5])
    rows = torch.tensor([0, 0, 0, 1])
    assert (3.0, 2.0) == (measure_kl(values, rows, 2, "sequence-mean"), measure_kl(values, rows, 2, "token-mean"))


@pytest.mark.parametrize("unit", ["sequence-sum", "sequence-mean", "token-mean"])
def test_rows_without_tokens_are_not_counted(unit):
    assert measure_kl(KL, SAMPLES, COUNT, unit) == measure_kl(KL, SAMPLES, COUNT + 4, unit)
    assert 0.0 == measure_kl(KL[:0], SAMPLES[:0], 2, unit)


def test_on_target_nothing_changes():
    assert 0.2 == adaptive().after(KL, SAMPLES, COUNT).coefficient


@pytest.mark.parametrize(("kl", "factor"), [(1.1, 1.04), (100.0, 1.08), (0.9, 0.96), (0.0, 0.92)])
def test_change_is_proportional_and_bounded(kl, factor):
    assert 0.2 * factor == pytest.approx(adaptive().after(kl * KL, SAMPLES, COUNT).coefficient)


def test_the_unit_decides_the_direction():
    by_token, by_row = (
        adaptive(target=2.0, unit=unit).after(KL, SAMPLES, COUNT) for unit in ("token-mean", "sequence-sum")
    )
    assert by_token.coefficient < 0.2 < by_row.coefficient


def test_the_controller_itself_does_not_change():
    controller = adaptive()
    controller.after(9 * KL, SAMPLES, COUNT)
    assert adaptive() == controller


def test_fixed_stays():
    controller = FixedKL(coefficient=0.1)
    assert controller is controller.after(KL, SAMPLES, COUNT)


def test_entropy_bonus_waits_for_a_measurement():
    assert 0.0 == AdaptiveEntropy(coefficient=0.5).used


def test_entropy_bonus_is_used_at_the_target():
    assert 0.505 == pytest.approx(AdaptiveEntropy(coefficient=0.5).after(0.2).used)


def test_entropy_coefficient_stays_in_its_bounds():
    assert 0.0 == AdaptiveEntropy().after(5.0).coefficient
    assert 1.0 == AdaptiveEntropy(coefficient=0.999).after(0.0).coefficient
