"""The local engine: what comes back, in which order rows enter and leave, versions, failures, determinism."""

import asyncio
import itertools

import pytest
import torch

from posttrain.engines.local import Config, LocalEngine
from posttrain.errors import ModelError
from posttrain.functional.sampling import processed_logprobs
from posttrain.types import Ending, Sampling
from tests.tiny_models import build_tiny

WINDOW = 512
PROMPTS = [[5, 9, 33], [7, 12, 60, 3, 8, 8, 21], [44, 2, 1, 19]]


class Letters:
    """A tokenizer whose token i is one letter."""

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
        assert (False, False) == (skip_special_tokens, clean_up_tokenization_spaces)
        return "".join(chr(ord("A") + token) for token in ids)


def build_engine(family="qwen3", *, model=None, stop_ids=(), window=WINDOW, **config):
    model = build_lively(family) if model is None else model
    return LocalEngine(Config(**config), model, Letters(), frozenset(stop_ids), window)


def build_lively(family="qwen3"):
    """A tiny model that is sure of some tokens."""
    model = build_tiny(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


def run(engine, requests):
    """Generate (prompt, sampling, seed) requests together."""

    async def all_of_them():
        return await asyncio.gather(*[engine.generate(p, sampling, seed=seed) for p, sampling, seed in requests])

    return asyncio.run(all_of_them())


def mixed_requests(rows=12):
    lengths = itertools.cycle([3, 11, 7, 1, 20])
    return [
        (PROMPTS[i % 3], Sampling(max_new_tokens=length), i) for i, length in zip(range(rows), lengths, strict=False)
    ]


def recompute(model, prompt, completion, sampling):
    """Log-probability of each sampled token from one plain forward over the whole row."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion.ids]]), use_cache=False).logits[0]
    logits = logits[len(prompt) - 1 : -1]
    logprobs = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    return logprobs.gather(1, torch.tensor(completion.ids).unsqueeze(1)).squeeze(1).tolist()


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


class TestVersions:
    def test_each_token_carries_the_version_that_sampled_it(self):
        engine = build_engine()

        async def load_midway():
            running = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(max_new_tokens=10), seed=0))
            while engine.stats()["tokens"] < 4:
                await asyncio.sleep(0)
            await engine.load([], 7)
            return await running

        assert (0,) * 4 + (7,) * 6 == asyncio.run(load_midway()).versions
        assert 7 == engine.version

    @pytest.mark.parametrize("path", ["fast", "generic"])
    def test_loaded_weights_are_sampled_from(self, path):
        engine = build_engine(path=path)
        other = build_tiny("qwen3", seed=5)
        asyncio.run(engine.load(other.named_parameters(), 1))
        request = (PROMPTS[1], Sampling(max_new_tokens=10), 0)
        assert run(build_engine(model=other), [request])[0].ids == run(engine, [request])[0].ids

    def test_a_prompt_computed_with_old_weights_is_not_shared_with_new_rows(self):
        engine = build_engine()

        async def load_between():
            sampling = Sampling(max_new_tokens=10)
            first = asyncio.create_task(engine.generate(PROMPTS[0], sampling, seed=0))
            while engine.stats()["tokens"] < 3:
                await asyncio.sleep(0)
            with torch.no_grad():
                engine._model.model.layers[0].self_attn.v_proj.weight.mul_(-1)
            await engine.load(engine._model.named_parameters(), 1)
            second = await engine.generate(PROMPTS[0], sampling, seed=1)
            await first
            return second

        second = asyncio.run(load_between())
        assert 2 * len(PROMPTS[0]) == engine.stats()["prefill_tokens"]
        expected = recompute(engine._model, PROMPTS[0], second, Sampling(max_new_tokens=10))
        assert pytest.approx(expected, abs=2e-5) == second.rollout_logprobs

    def test_an_unknown_tensor_is_refused_and_nothing_is_changed(self):
        engine = build_engine()
        with pytest.raises(ModelError, match=r"no tensor 'model\.norm\.weigth'\. Did you mean 'model\.norm\.weight'"):
            asyncio.run(engine.load([("model.norm.weigth", torch.ones(32))], 3))
        assert 0 == engine.version

    def test_another_shape_is_refused_before_anything_is_copied(self):
        engine = build_engine()
        before = engine._model.model.norm.weight.clone()
        tensors = [("model.norm.weight", torch.ones(32) * 9), ("model.embed_tokens.weight", torch.ones(3, 3))]
        with pytest.raises(ModelError, match=r"shape \(3, 3\), the engine's \(61, 32\)"):
            asyncio.run(engine.load(tensors, 3))
        assert torch.equal(before, engine._model.model.norm.weight)

    def test_it_aliases_its_own_models_tensors_only(self):
        engine = build_engine()
        assert engine.aliases(engine._model.named_parameters())
        assert not engine.aliases(build_lively().named_parameters())
        assert not engine.aliases([])


class TestTrouble:
    def test_abort_keeps_what_was_sampled(self):
        engine = build_engine(max_rows=2)

        async def abort_midway():
            sampling = Sampling(max_new_tokens=100)
            calls = [asyncio.create_task(engine.generate(PROMPTS[0], sampling, seed=i)) for i in range(3)]
            while engine.stats()["tokens"] < 8:
                await asyncio.sleep(0)
            engine.abort()
            return await asyncio.gather(*calls)

        completions = asyncio.run(abort_midway())
        assert [4, 4, 0] == [len(completion.ids) for completion in completions]
        assert {Ending.ABORTED} == {completion.ending for completion in completions}

    def test_the_engine_works_on_after_an_abort(self):
        engine = build_engine()
        engine.abort()
        request = (PROMPTS[0], Sampling(max_new_tokens=3), 0)
        assert run(build_engine(), [request]) == run(engine, [request])

    def test_a_failure_reaches_everyone_who_waits(self):
        engine = build_engine(max_rows=2)
        with torch.no_grad():
            engine._model.model.norm.weight.fill_(float("nan"))

        async def all_of_them():
            calls = [engine.generate(p, Sampling(max_new_tokens=3), seed=0) for p in PROMPTS]
            return await asyncio.gather(*calls, return_exceptions=True)

        failures = asyncio.run(all_of_them())
        assert ["logits of rows"] * 3 == [str(failure)[:14] for failure in failures]

    def test_a_failure_in_the_middle_reaches_running_and_waiting(self):
        engine = build_engine(max_rows=2)

        async def break_midway():
            calls = [asyncio.create_task(engine.generate(p, Sampling(max_new_tokens=30), seed=0)) for p in PROMPTS]
            while engine.stats()["tokens"] < 8:
                await asyncio.sleep(0)
            engine._decoder.decode = None
            return await asyncio.gather(*calls, return_exceptions=True)

        assert [TypeError] * 3 == [type(failure) for failure in asyncio.run(break_midway())]

    def test_it_works_on_after_a_failure(self):
        engine = build_engine()
        weight = engine._model.model.norm.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(float("nan"))
        with pytest.raises(ValueError, match="not finite"):
            run(engine, [(PROMPTS[0], Sampling(max_new_tokens=3), 0)])
        with torch.no_grad():
            weight.copy_(before)
        request = (PROMPTS[0], Sampling(max_new_tokens=3), 0)
        assert run(build_engine(), [request]) == run(engine, [request])

    def test_a_caller_that_goes_away_frees_its_row(self):
        engine = build_engine()

        async def give_up():
            kept = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(max_new_tokens=12), seed=0))
            dropped = asyncio.create_task(engine.generate(PROMPTS[1], Sampling(max_new_tokens=400), seed=0))
            while engine.stats()["tokens"] < 6:
                await asyncio.sleep(0)
            dropped.cancel()
            return await kept

        completion = asyncio.run(give_up())
        assert 12 == len(completion.ids)
        assert engine.stats()["tokens"] < 30

    def test_an_empty_prompt_is_refused(self):
        with pytest.raises(ModelError, match="prompt is empty"):
            run(build_engine(), [([], Sampling(max_new_tokens=3), 0)])

    @pytest.mark.parametrize("token", [-1, 61])
    def test_an_id_outside_the_vocabulary_is_refused(self, token):
        with pytest.raises(ModelError, match="ids run from"):
            run(build_engine(), [([3, token], Sampling(max_new_tokens=3), 0)])

    def test_a_large_seed_is_taken(self):
        (completion,) = run(build_engine(), [(PROMPTS[0], Sampling(max_new_tokens=3), 2**64 - 1)])
        assert 3 == len(completion.ids)


class TestTheLearnersModule:
    @pytest.mark.parametrize("path", ["fast", "generic", "plain"])
    def test_mode_attention_and_gradient_are_as_before(self, path):
        model = build_lively().train()
        engine = build_engine(model=model, path=path)
        run(engine, mixed_requests(4))
        assert all(module.training for module in model.modules())
        assert "sdpa" == model.config._attn_implementation
        model(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False).logits.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())

    def test_gradients_may_be_computed_between_two_tokens(self):
        model = build_lively()
        engine = build_engine(model=model)

        async def train_meanwhile():
            running = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(max_new_tokens=10), seed=0))
            while engine.stats()["tokens"] < 4:
                await asyncio.sleep(0)
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            model(input_ids=torch.tensor([PROMPTS[1]]), use_cache=False).logits.sum().backward()
            return await running

        assert 10 == len(asyncio.run(train_meanwhile()).ids)

    def test_the_path_and_its_reason_are_told(self):
        engine = build_engine("gemma2")
        assert "generic" == engine.path
        assert "gemma2" in engine.path_reason
