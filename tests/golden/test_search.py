"""Golden values of search: every key of golden_search is computed here or listed with the reason why not."""

import pytest
import torch

from posttrain.functional.groups import degenerate
from posttrain.functional.search import AGGREGATIONS, keep_beams, keep_right, pick_best, rank
from tests.golden.fixtures_preference import close, f64, golden

FACTS = golden("search")
FIRST = {"a": 0.5, "b": 0.9, "c": 0.2, "d": 0.4}
SECOND = {"b1": [0.9, 0.3], "b2": [0.9, 0.45], "a1": [0.5, 0.8], "a2": [0.5, 0.1]}
TASKS = {
    "p1": [("x=2", True), ("x=2", True), ("x = 2", True), ("x=2 ", True)],
    "p2": [("7", False), ("9", True), ("8", False), ("7", False)],
    "p3": [("a", False), ("b", False), ("c", False), ("d", False)],
}
KEPT = {
    name: [samples[i][0] for i in keep_right([s for s, _ in samples], [ok for _, ok in samples], cap=2)]
    for name, samples in TASKS.items()
}


def level(aggregation: str) -> dict:
    """Scores and ranking of the second level of beams."""
    scores = [AGGREGATIONS[aggregation](steps) for steps in SECOND.values()]
    names = list(SECOND)
    return {"scores": dict(zip(names, scores, strict=True)), "ranking": [names[i] for i in rank(scores)]}


def biased(aggregation: str) -> list[float]:
    """Two steps at 0.9 against ten at 0.95."""
    return [AGGREGATIONS[aggregation]([0.9] * 2), AGGREGATIONS[aggregation]([0.95] * 10)]


ACTUAL = {
    "beam.keep_after_step1 (N=4,M=2)": [
        list(FIRST)[i] for i in keep_beams(list(FIRST.values()), list(FIRST), width=4 // 2)
    ],
    "beam.step2.last": level("last"),
    "beam.step2.min": level("min"),
    "beam.step2.prod": level("product"),
    "beam.step2.mean": level("mean"),
    "agg.length_bias: 2 steps at .9 vs 10 steps at .95": {
        "min": biased("min"),
        "prod": biased("product"),
        "mean": biased("mean"),
    },
    "rft.kept_unique_correct(cap 2 per prompt)": KEPT,
    "rft.stats": {
        "generated": sum(len(samples) for samples in TASKS.values()),
        "correct": sum(ok for samples in TASKS.values() for _, ok in samples),
        "kept": sum(len(kept) for kept in KEPT.values()),
        "prompts_without_any": [name for name, kept in KEPT.items() if not kept],
        "pass_at_1": {name: sum(ok for _, ok in samples) / len(samples) for name, samples in TASKS.items()},
    },
    "bon.tie_first_index": pick_best([0.2, 0.9, 0.9]),
    "degenerate_group": [degenerate(f64([0.7] * 7)), degenerate(f64([0, 0, 0, 1]))],
}
NOT_COMPUTED = {
    "rft.identity: mean over all 12 of r*(-logp) = (5/12)*mean NLL over correct": "a statement: tested below",
    "do_nothing.rate_zero_action, success given acts>0, mean acts x success": "a diagnosis of runs, not a search",
}


def test_every_key_is_computed_or_explained():
    assert FACTS.keys() == ACTUAL.keys() | NOT_COMPUTED.keys()


@pytest.mark.parametrize("key", ACTUAL)
def test_value(key):
    # The facts of step 2 were rounded to six digits when they were made; none of them needs more than three.
    assert close(FACTS[key], ACTUAL[key]), (key, FACTS[key], ACTUAL[key])


def test_fine_tuning_on_right_samples_is_reinforce_with_reward_0_or_1():
    rewards = torch.tensor([ok for samples in TASKS.values() for _, ok in samples])
    first, second = (torch.linspace(-3, -0.1, 12, dtype=torch.float64).requires_grad_() for _ in range(2))
    torch.where(rewards, -first, 0.0).mean().backward()
    (5 / 12 * -second[rewards].mean()).backward()
    assert second.grad.tolist() == pytest.approx(first.grad.tolist())
