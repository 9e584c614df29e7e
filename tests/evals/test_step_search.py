"""Step-verifier beam search: steps, pruning, expansion, token-exact rows, cost and what it is worth."""

import asyncio
from collections import Counter

import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError, RewardError
from posttrain.evals.step_search import StepSearch, step_search
from posttrain.types import Sampling
from tests.evals.digits import COMMA, STOP, DigitChat, Guesser, Prefix, rubric, tasks


def run(*texts, engine=None, judge=None, tokens=32, seed=0, verifier=None, progress=None, stop=(), **settings):
    return asyncio.run(
        step_search(
            tasks(*(texts or ("123", "456", "789"))),
            engine=engine or Guesser(),
            chat=DigitChat(),
            rubric=verifier or rubric(),
            judge=rubric(judge or Prefix()),
            sampling=Sampling(max_new_tokens=tokens, stop=stop),
            settings=StepSearch(**{"beams": 4, "expansions": 2, "delimiter": ","} | settings),
            seed=seed,
            progress=progress,
        )
    )


def test_a_step_judge_finds_answers_that_single_samples_miss():
    found = run(*(f"{n}" for n in range(123, 143)), engine=Guesser(skill=0.5), beams=8)
    assert found.numbers["best"].mean > 4 * 0.5**3


def test_a_judge_that_likes_wrong_steps_finds_wrong_answers():
    wrong = Prefix(lambda text, task: float(not task.answer.startswith(text)))
    assert 0.0 == run(judge=wrong).numbers["best"].mean


def test_the_first_step_writes_all_beams_from_the_prompt_with_different_seeds():
    engine = Guesser()
    run("123", engine=engine)
    first = engine.calls[:4]
    assert {(1, 2, 3, STOP)} == {row for row, _, _ in first}
    assert 4 == len({seed for _, _, seed in first})


def test_later_rows_extend_earlier_ones_token_by_token():
    engine = Guesser(skill=1.0)
    run("123", engine=engine)
    rows = list(dict.fromkeys(row for row, _, _ in engine.calls))
    assert [(1, 2, 3, STOP), (1, 2, 3, STOP, 1, COMMA), (1, 2, 3, STOP, 1, COMMA, 2, COMMA)] == rows


def test_what_is_left_of_equal_beams_is_continued_more_often():
    engine = Guesser(skill=1.0)
    run("123", engine=engine)
    assert [4, 4, 4] == list(Counter(row for row, _, _ in engine.calls).values())


def test_kept_beams_are_continued_in_turn():
    engine = Guesser(skill=0.5)
    run("1234", engine=engine, judge=Prefix(lambda text, task: 0.5))
    later = Counter(row for row, _, _ in engine.calls if len(row) == 7)
    assert [2, 2] == list(later.values())


def test_every_continuation_draws_by_itself():
    engine = Guesser()
    run("12345", engine=engine)
    assert len(engine.calls) == len({seed for _, _, seed in engine.calls})


def test_the_best_beams_survive():
    engine = Guesser()
    run("12345", engine=engine, beams=4, expansions=4)
    starts = {row[6:] for row, _, _ in engine.calls if len(row) == 8}
    assert 1 == len(starts)


def test_the_judge_reads_the_text_so_far():
    judge = Prefix()
    run("123", engine=Guesser(skill=1.0), judge=judge)
    assert ["1,"] * 4 + ["1,2,"] * 4 + ["1,2,3"] * 4 == judge.read


def test_the_cost_counts_dropped_beams_too():
    engine, judge = Guesser(), Prefix()
    found = run("123", "456", engine=engine, judge=judge)
    assert (len(engine.calls), len(judge.read)) == (found.cost.completions, found.cost.verdicts)
    assert 2 * found.cost.completions == found.cost.tokens


def test_a_search_ends_with_its_steps():
    engine = Guesser(skill=1.0)
    found = run("12345", engine=engine, max_steps=2)
    assert (8, 0.0) == (len(engine.calls), found.numbers["best"].mean)


def test_a_beam_may_not_outgrow_its_tokens():
    engine = Guesser(skill=1.0)
    found = run("12345", engine=engine, tokens=3)
    assert 0.0 == found.numbers["best"].mean
    assert {3, 1} == {sampling.max_new_tokens for _, sampling, _ in engine.calls}


def test_the_users_stop_strings_stay():
    engine = Guesser()
    run("12", engine=engine, stop=("9",))
    assert {("9", ",")} == {sampling.stop for _, sampling, _ in engine.calls}


@pytest.mark.parametrize(("aggregate", "expected"), [("last", 1.0), ("min", 1.0), ("product", 0.0), ("mean", 0.0)])
def test_scores_of_steps_are_aggregated(aggregate, expected):
    """The right path scores .5 and .8, the wrong one .9 and .45, as in the golden toy."""
    scores = {"1,": 0.5, "1,2": 0.8, "1,3": 0.1, "2,": 0.9}
    judge = Prefix(lambda text, task: scores.get(text, 0.45))
    found = run("12", judge=judge, engine=Guesser(skill=0.5), aggregate=aggregate, beams=8, expansions=1)
    assert (1.0, expected) == (found.numbers["any"].mean, found.numbers["best"].mean)


def test_the_votes_and_any_beam_are_reported_beside_the_best():
    found = run()
    assert {"best", "any", "majority", "weighted"} == set(found.numbers)
    assert found.numbers["any"].mean >= found.numbers["best"].mean


def test_beams_without_a_verdict_are_dropped_and_counted():
    judge = Prefix(lambda text, task: None if text.startswith("2") else 1.0)
    found = run("123", judge=judge)
    assert found.prompts[0].failed > 0
    assert any("have no verdict" in line for line in found.warnings)


def test_a_judge_that_always_fails_has_no_result():
    with pytest.raises(RewardError, match="no task has a judged answer"):
        run(judge=Prefix(lambda text, task: None))


def test_the_same_seed_finds_the_same_and_another_seed_other_draws():
    engines = [Guesser(), Guesser(), Guesser()]
    for engine, seed in zip(engines, (3, 3, 4), strict=True):
        run("123", engine=engine, seed=seed)
    assert engines[0].calls == engines[1].calls != engines[2].calls


def test_how_it_searched_is_part_of_the_protocol():
    digests = {
        run(**options).fingerprint.digest for options in ({}, {"beams": 8}, {"aggregate": "min"}, {"expansions": 4})
    }
    assert 4 == len(digests)


def test_progress_counts_tasks():
    seen = []
    run(progress=lambda done, total: seen.append((done, total)))
    assert [1, 2, 3] == [done for done, _ in seen]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 4, "expansions": 3}, "expansions must divide beams; got 4 beams, 3 expansions"),
        ({"aggregate": "median"}, "aggregate is one of min, product, last, mean, log_odds; got 'median'"),
        ({"delimiter": ""}, "delimiter"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        validate(StepSearch, options, where="search")
