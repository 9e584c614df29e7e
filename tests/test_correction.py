"""What the correction section says, and what it refuses."""

import pytest

from posttrain.correction import Correction
from posttrain.errors import ConfigError
from posttrain.settings import validate


def section(**options):
    return validate(Correction, options, where="test")


def test_nothing_is_corrected_unless_asked():
    assert ("none", False, False) == (section().type, section().rejects, section().recomputes)


@pytest.mark.parametrize(
    ("options", "rejects", "recomputes"),
    [
        ({"type": "decoupled", "weight": "truncate"}, False, True),
        ({"type": "decoupled", "weight": "mask", "floor": 0.5, "cap": 5.0}, True, True),
        ({"type": "decoupled", "geometric": (0.99, 1.01)}, True, True),
        ({"type": "bypass"}, False, False),
        ({"type": "bypass", "opsm": 0.1}, True, True),
    ],
)
def test_what_a_section_does(options, rejects, recomputes):
    assert (rejects, recomputes) == (section(**options).rejects, section(**options).recomputes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "truncate"}, "type 'none' corrects nothing"),
        ({"opsm": 0.1}, "type 'none' corrects nothing"),
        ({"type": "decoupled"}, "decoupled needs a weight"),
        ({"type": "bypass", "weight": "truncate"}, "count the gap twice"),
        ({"type": "bypass", "cap": 3.0}, "nothing reads it without a weight"),
        ({"type": "bypass", "level": "sequence"}, "nothing reads it without a weight"),
        ({"type": "decoupled", "weight": "truncate", "floor": 0.5}, "biases upwards"),
        ({"type": "decoupled", "weight": "mask", "floor": 2.0}, "must be below cap"),
        ({"type": "decoupled", "geometric": (1.1, 0.9)}, "lower and a higher bound"),
        ({"type": "decoupled", "weight": "truncate", "denominator": "kept"}, "nothing is ever dropped"),
        ({"type": "bypas"}, "type"),
        ({"caps": 2.0}, "unknown key 'caps'"),
    ],
)
def test_contradictions_are_refused_with_the_reason(options, message):
    with pytest.raises(ConfigError, match=message):
        section(**options)
