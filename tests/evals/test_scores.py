"""Held-out quality of a score head: pairs, steps, ties and chance."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from posttrain.algorithms.prm import PRM
from posttrain.algorithms.prm import Config as StepConfig
from posttrain.algorithms.reward_model import Config, RewardModel
from posttrain.batches.pack import pack
from posttrain.evals.scores import score_quality
from posttrain.functional.intervals import wilson
from tests.algorithms.examples import group
from tests.algorithms.test_prm import solution


@dataclass
class Scorer:
    """A learner whose score is a function of a sample."""

    score: object
    calls: list = field(default_factory=list)

    def values(self, microbatch):
        found = [self.score(sample) for sample in microbatch.samples]
        self.calls.append(len(microbatch.samples))
        return np.concatenate([np.atleast_1d(np.asarray(f, dtype=float)) for f in found])


def layout(samples):
    return pack(samples, token_budget=8, layout="padded")


def pairs(groups, score):
    return score_quality(groups, algorithm=RewardModel(Config()), learner=Scorer(score), pack=layout)


def test_accuracy_counts_groups_whose_best_beats_their_worst():
    groups = [group([1.0, 0.0], place) for place in range(4)]
    right = {(0, 0), (1, 0), (2, 0), (3, 1)}
    found = pairs(groups, lambda s: 1.0 if (s.group, s.rollout) in right else 0.0)
    assert (0.75, 4, 0.5) == (found.accuracy, found.count, found.chance)
    assert wilson(0.75, 4) == (found.low, found.high)


def test_rankings_give_one_pair_each():
    found = pairs([group([1.0, 2.0, 0.0])], lambda s: [0.5, 0.9, 0.7][s.rollout])
    assert (1.0, 1) == (found.accuracy, found.count)


def test_a_tie_is_half_right():
    assert 0.5 == pairs([group([1.0, 0.0])], lambda s: 0.3).accuracy


def test_calibration_is_of_the_gap():
    groups = [group([1.0, 0.0], place) for place in range(4)]
    even = pairs(groups, lambda s: 0.0)
    sure = pairs(groups, lambda s: 20.0 * s.reward)
    wrong = pairs(groups, lambda s: -20.0 * s.reward)
    assert (0.0, 0.0, 1.0) == tuple(round(found.calibration_error, 6) for found in (even, sure, wrong))


def test_groups_without_a_comparison_do_not_count():
    assert 1 == pairs([group([1.0, 0.0]), group([1.0, 1.0], 1)], lambda s: s.reward).count


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ValueError, match="no held-out group"):
        pairs([group([1.0, 1.0])], lambda s: 0.0)


def steps(labels, score):
    algorithm = PRM(StepConfig())
    return score_quality([solution(labels)], algorithm=algorithm, learner=Scorer(score), pack=layout)


def test_steps_are_judged_against_one_half():
    found = steps([1.0, 0.0, 0.9], lambda s: [2.0, 1.0, 3.0])
    assert (pytest.approx(2 / 3), 3, pytest.approx(2 / 3)) == (found.accuracy, found.count, found.chance)


def test_steps_that_could_be_either_do_not_count():
    assert 2 == steps([1.0, 0.5, 0.0], lambda s: [2.0, 1.0, -3.0]).count


def test_steps_without_any_label_are_an_error():
    with pytest.raises(ValueError, match="no held-out step"):
        steps([0.5, 0.5, 0.5], lambda s: [0.0, 0.0, 0.0])


def test_numbers_go_by_evaluation_names():
    found = pairs([group([1.0, 0.0])], lambda s: s.reward).metrics()
    assert {"eval/accuracy", "eval/calibration_error", "eval/count"} <= set(found)


def test_batches_are_scored_within_the_budget():
    scorer = Scorer(lambda s: s.reward)
    groups = [replace(group([1.0, 0.0], place)) for place in range(4)]
    score_quality(groups, algorithm=RewardModel(Config()), learner=scorer, pack=layout)
    assert len(scorer.calls) > 1
