"""Notes: templates with options, choices by option, and every shipped note complete."""

import pytest

from posttrain.compare.notes import plain, read_note, term_fields, term_text
from posttrain.errors import ConfigError


def test_a_term_takes_the_options_values():
    assert "from 0.2 to 1e-06" == term_text("from {low} to {epsilon}", {"low": 0.2, "epsilon": 1e-6})


def test_a_term_may_be_chosen_by_an_option():
    term = {"by": "scale", "none": "nothing", "other": "by {scale}"}
    assert ["nothing", "by std"] == [term_text(term, {"scale": value}) for value in ("none", "std")]


def test_true_false_and_none_are_written_as_in_a_recipe():
    assert ["true", "false", "none", "3", "0.5"] == [plain(value) for value in (True, False, None, 3.0, 0.5)]


def test_a_value_without_text_is_refused():
    with pytest.raises(ConfigError, match="has no text for std"):
        term_text({"by": "scale", "none": "nothing"}, {"scale": "std"})


def test_a_term_tells_which_options_it_speaks_of():
    assert {"scale", "epsilon"} == term_fields({"by": "scale", "none": "-", "other": "plus {epsilon}"})


def test_an_algorithm_of_the_user_s_own_has_no_note():
    assert read_note("my_module:Mine") is None


def test_an_unknown_algorithm_has_no_note():
    assert read_note("no_such_algorithm") is None


def test_a_note_is_read_whole():
    note = read_note("grpo")
    assert note is not None
    assert "GRPO" in note.title
    assert note.failures
