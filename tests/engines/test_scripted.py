"""The scripted engine: answers in order or from a function, cut, delayed, failing or aborted as told."""

import asyncio

import pytest

from posttrain.engines.scripted import Config, ScriptedEngine
from posttrain.errors import ConfigError, ModelError
from posttrain.types import Ending, Sampling

SAMPLING = Sampling(max_new_tokens=10)


def ask(engine, prompt=(1, 2, 3), sampling=SAMPLING, seed=0):
    return asyncio.run(engine.generate(prompt, sampling, seed=seed))


def build(*answers, stop_ids=(9,), window=100, **config):
    return ScriptedEngine(Config(answers=answers, **config), stop_ids, window)


def test_answers_come_in_order_and_start_again():
    engine = build((4, 9), (5, 9))
    assert [(4, 9), (5, 9), (4, 9)] == [ask(engine).ids for _ in range(3)]


def test_a_function_of_the_prompt_may_answer():
    engine = build()
    engine.answer = lambda prompt: [sum(prompt), 9]
    assert (6, 9) == ask(engine).ids


@pytest.mark.parametrize(("answer", "expected"), [((4, 9), Ending.STOP), ((4, 5), Ending.LENGTH), ((), Ending.LENGTH)])
def test_a_stop_token_at_the_end_is_a_stop(answer, expected):
    assert expected == ask(build(answer)).ending


def test_sampling_and_window_cut_the_answer():
    assert (4, 5) == ask(build((4, 5, 6, 9)), sampling=Sampling(max_new_tokens=2)).ids
    assert (4,) == ask(build((4, 5, 6, 9), window=4)).ids
    assert () == ask(build((4, 5, 6, 9), window=2)).ids


def test_it_can_be_told_to_truncate():
    completion = ask(build((4, 5, 6, 9), truncate_to=3))
    assert ((4, 5, 6), Ending.LENGTH) == (completion.ids, completion.ending)


def test_it_can_be_told_to_abort():
    completion = ask(build((4, 5, 6, 9), abort_after=1))
    assert ((4,), Ending.ABORTED) == (completion.ids, completion.ending)


def test_it_can_be_told_to_fail():
    engine = build((4, 9), fail_every=2)
    ask(engine)
    with pytest.raises(ModelError, match="scripted failure of call 2"):
        ask(engine)
    assert (4, 9) == ask(engine).ids


def test_delayed_answers_keep_the_order_of_their_calls():
    engine = build((4, 9), (5, 9), delay=0.002)

    async def both():
        return await asyncio.gather(*[engine.generate((1,), SAMPLING, seed=0) for _ in range(2)])

    assert [(4, 9), (5, 9)] == [completion.ids for completion in asyncio.run(both())]


def test_abort_ends_a_call_that_waits():
    engine = build((4, 9), delay=60)

    async def abort():
        call = asyncio.create_task(engine.generate((1,), SAMPLING, seed=0))
        await asyncio.sleep(0)
        engine.abort()
        return await call

    completion = asyncio.run(abort())
    assert ((), Ending.ABORTED) == (completion.ids, completion.ending)


def test_logprobs_are_plausible_and_belong_to_seed_and_place():
    engine = build((4, 5, 9))
    first, again, other = ask(engine, seed=1), ask(engine, seed=1), ask(engine, seed=2)
    assert all(-2 < logprob < 0 for logprob in first.rollout_logprobs)
    assert first.rollout_logprobs == again.rollout_logprobs
    assert first.rollout_logprobs != other.rollout_logprobs


def test_versions_are_counted():
    engine = build((4, 9))
    asyncio.run(engine.load([], 3))
    asyncio.run(engine.load([], 4))
    assert ([3, 4], 4, (4, 4)) == (engine.versions, engine.version, ask(engine).versions)


def test_it_remembers_what_it_was_asked():
    engine = build((4, 9))
    ask(engine, prompt=[7, 8], seed=5)
    assert [((7, 8), SAMPLING, 5)] == engine.calls


def test_without_answers_it_says_what_to_give():
    with pytest.raises(ConfigError, match="no answers"):
        ask(build())
