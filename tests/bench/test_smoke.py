"""When the quick benchmark complains."""

from bench.smoke import complaint

RECORDED = {"row": {"ratio": 2.0}}


def test_a_ratio_as_recorded_is_fine():
    assert complaint("row", 2.0, 1e-7, RECORDED) is None


def test_a_ratio_at_four_fifths_is_fine():
    assert complaint("row", 1.6, None, RECORDED) is None


def test_a_lower_ratio_is_named_with_what_was_expected():
    assert complaint("row", 1.59, None, RECORDED) == "row: 1.59x, expected at least 1.60x (0.8 of the recorded ratio)"


def test_other_gradients_are_worse_than_any_time():
    assert "gradients are 1.0e-03 apart" in complaint("row", 9.0, 1e-3, RECORDED)


def test_a_row_nobody_measured_says_what_to_do():
    assert complaint("new", 1.0, None, RECORDED) == "new: nothing is recorded; run make bench first"
