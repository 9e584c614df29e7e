"""The local engine: what comes back, in which order rows enter and leave, determinism."""

import asyncio

import pytest
import torch

from posttrain.types import Ending, Sampling
from tests.engines.local_engines import PROMPTS, build_engine, mixed_requests, recompute, run
from tests.tiny_models import build_tiny


class TestCompletions:
    @pytest.mark.parametrize("family", ["qwen3", "gemma2"])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"temperature": 0.7},
            {"top_p": 0.8},
            {"top_k": 5},
            {"min_p": 0.1},
            {"temperature": 1.4, "top_k": 9, "top_p": 0.9},
        ],
        ids=str,
    )
    def test_reported_logprobs_are_those_of_the_distribution_sampled_from(self, family, options):
        engine = build_engine(family)
        sampling = Sampling(max_new_tokens=12, **options)
        for prompt, completion in zip(PROMPTS, run(engine, [(p, sampling, 3) for p in PROMPTS]), strict=True):
            expected = recompute(engine._model, prompt, completion, sampling)
            assert pytest.approx(expected, abs=2e-5) == completion.rollout_logprobs

    @pytest.mark.parametrize("path", ["fast", "generic", "plain", "recompute"])
    def test_every_path_samples_the_same_tokens(self, path):
        expected = [completion.ids for completion in run(build_engine(path="recompute"), mixed_requests())]
        assert expected == [completion.ids for completion in run(build_engine(path=path), mixed_requests())]

    @pytest.mark.parametrize("path", ["fast", "generic", "plain"])
    def test_greedy_equals_transformers_generate(self, path):
        engine = build_engine(path=path)
        sampling = Sampling(max_new_tokens=15, temperature=0.0)
        for prompt, completion in zip(PROMPTS, run(engine, [(p, sampling, 0) for p in PROMPTS]), strict=True):
            row = torch.tensor([prompt])
            expected = engine._model.generate(
                row, attention_mask=torch.ones_like(row), max_new_tokens=15, do_sample=False, eos_token_id=None
            )
            assert expected[0, len(prompt) :].tolist() == list(completion.ids)
            assert (0.0,) * 15 == completion.rollout_logprobs

    def test_frequencies_follow_the_models_distribution(self):
        engine = build_engine(model=build_tiny())
        completions = run(engine, [(PROMPTS[0], Sampling(max_new_tokens=1, top_k=2), seed) for seed in range(4000)])
        (first, share), (second, other) = sorted(
            {(c.ids[0], torch.tensor(c.rollout_logprobs[0]).exp().item()) for c in completions}
        )
        assert pytest.approx(1.0) == share + other
        assert first != second
        drawn = sum(completion.ids[0] == first for completion in completions) / 4000
        assert pytest.approx(share, abs=5 * (0.25 / 4000) ** 0.5) == drawn

    def test_temperatures_may_differ_between_requests(self):
        engine = build_engine()
        cold, warm = Sampling(max_new_tokens=8, temperature=0.0), Sampling(max_new_tokens=8, temperature=1.2, top_p=0.9)
        together = run(engine, [(PROMPTS[0], cold, 1), (PROMPTS[0], warm, 1)])
        alone = [run(engine, [(PROMPTS[0], sampling, 1)])[0] for sampling in (cold, warm)]
        assert [completion.ids for completion in alone] == [completion.ids for completion in together]

    def test_a_forbidden_id_is_never_sampled(self):
        free = run(build_engine(model=build_tiny()), [(PROMPTS[0], Sampling(max_new_tokens=200), 0)])[0]
        engine = build_engine(model=build_tiny(), forbid=(free.ids[0],))
        bound = run(engine, [(PROMPTS[0], Sampling(max_new_tokens=200), 0)])[0]
        assert free.ids[0] not in bound.ids


class TestEndings:
    def test_the_limit(self):
        (completion,) = run(build_engine(), [(PROMPTS[0], Sampling(max_new_tokens=4), 0)])
        assert (4, Ending.LENGTH) == (len(completion.ids), completion.ending)

    def test_the_window(self):
        (completion,) = run(build_engine(window=10), [(PROMPTS[0], Sampling(max_new_tokens=99), 0)])
        assert (10 - 3, Ending.LENGTH) == (len(completion.ids), completion.ending)

    @pytest.mark.parametrize("window", [2, 3])
    def test_a_prompt_that_leaves_no_room_gives_an_empty_completion(self, window):
        (completion,) = run(build_engine(window=window), [(PROMPTS[0], Sampling(max_new_tokens=9), 0)])
        assert ((), (), (), Ending.LENGTH) == (
            completion.ids,
            completion.rollout_logprobs,
            completion.versions,
            completion.ending,
        )

    @pytest.mark.parametrize("place", [0, 3])
    def test_a_stop_token_is_part_of_the_completion(self, place):
        free = run(build_engine(), [(PROMPTS[1], Sampling(max_new_tokens=12), 5)])[0]
        stop = free.ids[place]
        first = free.ids.index(stop)
        (stopped,) = run(build_engine(stop_ids=[stop]), [(PROMPTS[1], Sampling(max_new_tokens=12), 5)])
        assert (free.ids[: first + 1], Ending.STOP) == (stopped.ids, stopped.ending)

    def test_a_stop_token_at_the_limit_counts_as_stop(self):
        free = run(build_engine(), [(PROMPTS[1], Sampling(max_new_tokens=1), 5)])[0]
        (stopped,) = run(build_engine(stop_ids=[free.ids[0]]), [(PROMPTS[1], Sampling(max_new_tokens=1), 5)])
        assert Ending.STOP == stopped.ending

    def test_a_stop_string_may_span_tokens(self):
        free = run(build_engine(), [(PROMPTS[1], Sampling(max_new_tokens=12), 5)])[0]
        text = "".join(chr(ord("A") + token) for token in free.ids)
        stop = text[4:7]
        end = text.index(stop) + 3
        sampling = Sampling(max_new_tokens=12, stop=("never this", stop))
        (stopped,) = run(build_engine(), [(PROMPTS[1], sampling, 5)])
        assert (free.ids[:end], Ending.STOP_STRING) == (stopped.ids, stopped.ending)

    def test_other_rows_are_not_stopped_by_it(self):
        free = run(build_engine(), [(PROMPTS[1], Sampling(max_new_tokens=12), 5)])[0]
        stop = Sampling(max_new_tokens=12, stop=(chr(ord("A") + free.ids[2]),))
        _, other = run(build_engine(), [(PROMPTS[1], stop, 5), (PROMPTS[1], Sampling(max_new_tokens=12), 5)])
        assert free.ids == other.ids


class TestBatching:
    @pytest.mark.parametrize("path", ["fast", "generic", "plain", "recompute"])
    @pytest.mark.parametrize("max_rows", [1, 3, 5])
    def test_retiring_and_refilling_changes_no_token(self, path, max_rows):
        expected = run(build_engine(path=path), mixed_requests())
        engine = build_engine(path=path, max_rows=max_rows)
        completions = run(engine, mixed_requests())
        assert [completion.ids for completion in expected] == [completion.ids for completion in completions]
        assert max_rows == engine.stats()["peak_rows"]

    def test_a_completion_does_not_depend_on_its_company(self):
        together = run(build_engine(), mixed_requests(30))
        for request, completion in list(zip(mixed_requests(30), together, strict=True))[::7]:
            assert run(build_engine(), [request])[0].ids == completion.ids

    def test_the_same_submissions_give_the_same_bits(self):
        assert run(build_engine(), mixed_requests()) == run(build_engine(), mixed_requests())

    def test_other_seeds_give_other_tokens(self):
        sampling = Sampling(max_new_tokens=10)
        completions = run(build_engine(), [(PROMPTS[0], sampling, seed) for seed in range(5)])
        assert 5 == len({completion.ids for completion in completions})

    def test_a_draw_depends_on_the_row_index_not_on_the_completions_start(self):
        engine = build_engine()
        (whole,) = run(engine, [(PROMPTS[0], Sampling(max_new_tokens=8), 3)])
        (rest,) = run(engine, [([*PROMPTS[0], *whole.ids[:3]], Sampling(max_new_tokens=5), 3)])
        assert whole.ids[3:] == rest.ids

    def test_a_group_computes_its_prompt_once(self):
        engine = build_engine()
        run(engine, [(PROMPTS[i % 3], Sampling(max_new_tokens=4), i) for i in range(24)])
        assert sum(map(len, PROMPTS)) == engine.stats()["prefill_tokens"]

    def test_a_group_that_does_not_fit_at_once_keeps_its_prompt(self):
        engine = build_engine(max_rows=2)
        run(engine, [(PROMPTS[1], Sampling(max_new_tokens=4), i) for i in range(7)])
        assert len(PROMPTS[1]) == engine.stats()["prefill_tokens"]

    def test_every_sampled_token_is_counted(self):
        engine = build_engine()
        completions = run(engine, mixed_requests())
        assert sum(len(completion.ids) for completion in completions) == engine.stats()["tokens"]

    def test_the_token_budget_limits_the_rows(self):
        engine = build_engine(token_budget=3 + 2 * 10)
        completions = run(engine, [(PROMPTS[0], Sampling(max_new_tokens=10), i) for i in range(5)])
        assert 2 == engine.stats()["peak_rows"]
        assert [10] * 5 == [len(completion.ids) for completion in completions]

    def test_a_request_above_the_budget_runs_alone(self):
        engine = build_engine(token_budget=5)
        run(engine, [(PROMPTS[0], Sampling(max_new_tokens=10), i) for i in range(2)])
        assert 1 == engine.stats()["peak_rows"]

    def test_memory_is_given_back_when_nothing_is_left(self):
        engine = build_engine()
        run(engine, mixed_requests())
        assert ([], {}) == (engine._decoder.store.slots, engine._decoder.store._own)

    def test_two_callers_at_different_times_share_the_batch(self):
        engine = build_engine()
        sampling = Sampling(max_new_tokens=20)

        async def late():
            for _ in range(6):
                await asyncio.sleep(0)
            return await engine.generate(PROMPTS[1], sampling, seed=2)

        async def both():
            return await asyncio.gather(engine.generate(PROMPTS[0], sampling, seed=1), late())

        completions = asyncio.run(both())
        assert 2 == engine.stats()["peak_rows"]
        alone = [run(build_engine(), [(PROMPTS[i], sampling, i + 1)])[0] for i in range(2)]
        assert [completion.ids for completion in alone] == [completion.ids for completion in completions]

    def test_several_event_loops_after_each_other(self):
        engine = build_engine()
        assert run(engine, mixed_requests()) == run(engine, mixed_requests())

    def test_other_coroutines_run_between_tokens(self):
        engine = build_engine()
        ticks = []

        async def tick():
            while True:
                ticks.append(engine.stats()["tokens"])
                await asyncio.sleep(0)

        async def both():
            ticking = asyncio.create_task(tick())
            await engine.generate(PROMPTS[0], Sampling(max_new_tokens=10), seed=0)
            ticking.cancel()

        asyncio.run(both())
        assert set(range(2, 10)) <= set(ticks)
