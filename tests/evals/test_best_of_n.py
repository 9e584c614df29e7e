"""Best-of-N: unbiased numbers, the judge's choice, votes, cost, protocol and refusals."""

import asyncio
import itertools

import pytest

from posttrain.errors import ConfigError, RewardError
from posttrain.evals.best_of_n import best_of_n, choices, powers
from posttrain.evals.summary import Right
from posttrain.functional.search import best_of_n_kl_bound
from posttrain.types import Sampling
from tests.evals.builders import rollout, score
from tests.evals.digits import DigitChat, Guesser, Prefix, Single, rubric, tasks


def run(*texts, samples=4, judge=None, engine=None, **options):
    return asyncio.run(
        best_of_n(
            tasks(*(texts or ("12", "34", "56"))),
            engine=engine or Guesser(),
            chat=DigitChat(),
            rubric=rubric(),
            judge=judge if judge is None else rubric(judge),
            make_env=Single,
            sampling=Sampling(max_new_tokens=8),
            samples=samples,
            **{"seed": 1} | options,
        )
    )


def answers(*pairs):
    """Rollouts from (answer, right)."""
    return [rollout(score(float(ok), answer), index=i) for i, (answer, ok) in enumerate(pairs)]


GOLDEN = answers(("7", 0), ("8", 1), ("7", 0), ("9", 0), ("8", 1), ("8", 1))
SCORES = [0.9, 0.3, 0.4, 0.95, 0.35, 0.2]


class TestChoices:
    def test_the_best_score_is_expected_over_every_choice_of_n(self):
        found = choices(GOLDEN, SCORES, Right(), (1, 2, 3, 6))
        for n in (1, 2, 3, 6):
            subsets = list(itertools.combinations(range(6), n))
            right = [Right()(GOLDEN[max(s, key=SCORES.__getitem__)]) for s in subsets]
            assert sum(right) / len(subsets) == pytest.approx(found[f"best@{n}"], abs=1e-12)

    def test_majority_and_weighted_vote_are_the_golden_ones(self):
        found = choices(GOLDEN, SCORES, Right(), (1,))
        assert (1.0, 0.0) == (found["majority"], found["weighted"])

    def test_scores_below_zero_are_no_votes(self):
        found = choices(GOLDEN, [s - 1 for s in SCORES], Right(), (1,))
        assert "weighted" not in found

    def test_a_perfect_judge_reaches_pass_at_n(self):
        found = choices(GOLDEN, [float(Right()(r)) for r in GOLDEN], Right(), (1, 2, 4))
        assert [found[f"pass@{n}"] for n in (1, 2, 4)] == pytest.approx([found[f"best@{n}"] for n in (1, 2, 4)])

    def test_a_judge_without_an_opinion_is_worth_one_sample(self):
        found = choices(GOLDEN, [0.5] * 6, Right(), (1, 2, 6))
        assert [0.5] * 3 == pytest.approx([found[f"best@{n}"] for n in (1, 2, 6)])

    def test_an_n_above_the_judged_samples_is_left_out(self):
        assert "best@4" not in choices(GOLDEN[:3], SCORES[:3], Right(), (2, 4))

    def test_nothing_judged_gives_nothing(self):
        assert {} == choices([], [], Right(), (1,))


@pytest.mark.parametrize(("samples", "expected"), [(1, (1,)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))])
def test_numbers_of_samples_double(samples, expected):
    assert expected == powers(samples)


def test_a_good_judge_lifts_the_answer_and_a_bad_one_lowers_it():
    good = run(judge=Prefix(), samples=8).numbers
    bad = run(judge=Prefix(lambda text, task: float(text != task.answer)), samples=8).numbers
    assert bad["best@8"].mean < good["pass@1"].mean < good["best@8"].mean
    singles = [good["best@1"].mean, bad["best@1"].mean]
    assert [good["pass@1"].mean] * 2 == pytest.approx(singles, abs=1e-12)


def test_the_cost_counts_every_sample_and_every_verdict():
    engine, judge = Guesser(), Prefix()
    found = run(engine=engine, judge=judge)
    assert (12, 12, 48) == (found.cost.completions, found.cost.verdicts, found.cost.tokens)
    assert (12, 12) == (len(engine.calls), len(judge.read))
    assert "48 tokens (16.0 per task), 12 completions (4.0 per task), 12 verdicts (4.0 per task)" == found.cost_line()


def test_without_a_judge_it_says_that_the_verifier_chose():
    found = run()
    assert "perfect judge" in found.warnings[0]
    assert found.numbers["best@4"].mean == found.numbers["pass@4"].mean


def test_samples_without_a_verdict_are_never_chosen():
    found = run(judge=Prefix(lambda text, task: None if text.startswith("1") else 1.0))
    assert [True, False, False] == [prompt.failed > 0 for prompt in found.prompts]
    assert any("have no verdict" in line for line in found.warnings)


def test_a_judge_that_always_fails_has_no_result():
    with pytest.raises(RewardError, match="no task has a judged answer"):
        run(judge=Prefix(lambda text, task: None))


def test_the_judge_is_part_of_the_protocol():
    digests = {run().fingerprint.digest, run(judge=Prefix()).fingerprint.digest, run(samples=2).fingerprint.digest}
    assert 3 == len(digests)
    assert run(judge=Prefix()).fingerprint.digest == run(judge=Prefix(), label="again").fingerprint.digest


def test_the_settings_say_how_far_the_policy_moves():
    assert {str(n): best_of_n_kl_bound(n) for n in (1, 2, 4)} == run().settings["kl_bound"]


def test_the_result_is_plain_json():
    row = run(judge=Prefix(), label="x").to_json()
    assert ("best_of_n", "x", 48) == (row["method"], row["label"], row["cost"]["tokens"])
    assert row["digest"] == run(judge=Prefix()).fingerprint.digest


def test_progress_counts_tasks():
    seen = []
    run(progress=lambda done, total: seen.append((done, total)))
    assert [(1, 3), (2, 3), (3, 3)] == seen


def test_an_n_above_the_samples_is_refused():
    with pytest.raises(ConfigError, match="best of 8 cannot be estimated from 4 samples"):
        run(ns=(1, 8))
