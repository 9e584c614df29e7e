"""Terms of any algorithm: from option names, from needs, from the note, and from the class itself."""

import pytest

from posttrain.compare.notes import Note
from posttrain.compare.terms import ORDER, REDUCTIONS, algorithm_terms, by_name, by_needs, option_values
from posttrain.config import Settings
from posttrain.functional.reduce import MODES
from posttrain.types import Needs


class Options(Settings):
    """Options of an algorithm that nobody has heard of."""

    clip_low: float = 0.2
    """Lower bound."""
    clip_high: float = 0.3
    """Upper bound."""
    patience: int = 3
    """How long it waits."""


class Bare:
    """An algorithm without terms of its own."""

    needs = Needs(streams={"policy": "token-mean"})


class Speaking(Bare):
    """An algorithm that says its own terms."""

    def terms(self):
        return {"clip": "none at all", "magic": "a little"}


def note(**terms):
    return Note(title="t", purpose="p", when="w", otherwise="o", cost="c", failures=(), terms=terms)


def test_option_names_are_understood_in_every_algorithm():
    assert "ratio held in [1 - 0.2, 1 + 0.3]" == algorithm_terms(Bare(), Options(), None)["clip"]


def test_an_option_that_nobody_explains_is_shown_with_its_sentence():
    assert "3: How long it waits." == algorithm_terms(Bare(), Options(), None)["patience"]


def test_the_note_goes_before_the_option_s_name():
    assert "wide, 0.3" == algorithm_terms(Bare(), Options(), note(clip="wide, {clip_high}"))["clip"]


def test_an_option_that_the_note_speaks_of_is_not_shown_twice():
    assert "patience" not in algorithm_terms(Bare(), Options(), note(loss="waits {patience}"))


def test_the_class_has_the_last_word():
    terms = algorithm_terms(Speaking(), Options(), note(clip="wide"))
    assert ("none at all", "a little") == (terms["clip"], terms["magic"])


def test_terms_stand_in_the_field_s_order():
    names = list(algorithm_terms(Bare(), Options(), note(baseline="mean", loss="l")))
    known = [name for name in names if name in ORDER]
    assert sorted(known, key=ORDER.index) == known
    assert known == names[: len(known)]


def test_bare_options_without_a_config_are_shown_too():
    assert {"size": 3} == option_values({"size": 3})
    assert {} == option_values(None)


def test_every_reduction_has_words():
    assert set(MODES) == set(REDUCTIONS)


@pytest.mark.parametrize(
    ("options", "term", "words"),
    [
        ({"scale": "none"}, "scale", "none"),
        ({"scale": "group_std", "ddof": 0, "epsilon": 1e-4}, "scale", "n - 0"),
        ({"scale": "group_std", "ddof": 0, "epsilon": 1e-4}, "epsilon", "0.0001"),
        ({"dual_clip": None}, "dual clip", "none"),
        ({"dual_clip": 3.0}, "dual clip", "at most 3 |A|"),
        ({"kl_coefficient": 0.0, "kl_estimator": "k3"}, "KL to the reference", "none"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k3"}, "KL to the reference", "0.1 x k3, in the loss"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k1", "kl_place": "reward"}, "KL to the reference", "in the reward"),
        ({"entropy_coefficient": 0.01}, "entropy", "bonus 0.01"),
        ({"entropy_coefficient": 0.0}, "entropy", "none"),
        ({"drop_degenerate": True}, "filter", "dropped"),
    ],
)
def test_the_vocabulary_of_option_names(options, term, words):
    found, spoken = by_name(options)
    assert words in found[term]
    assert options.keys() <= spoken


def test_needs_give_data_reduction_filter_and_critic_away():
    found = by_needs(Needs(engine=False, data="preferences", values=True, refill=3, streams={"policy": "token-sum"}))
    assert "preference pairs from disk" == found["trains on"]
    assert "at most 3 times" in found["filter"]
    assert "critic" in found
    assert found["reduction"].startswith("token-sum")


def test_a_loss_part_with_another_reduction_is_named():
    found = by_needs(Needs(streams={"policy": "token-mean", "nll": "positive-token-mean", "kl": "token-mean"}))
    assert "reduction of the nll loss" in found
    assert "reduction of the kl loss" not in found
