"""The local engine beside its learner: versions, loading, aborts, failures, and the module it shares."""

import asyncio

import pytest
import torch

from posttrain.errors import ModelError
from posttrain.types import Ending, Sampling
from tests.engines.local_engines import PROMPTS, build_engine, build_lively, mixed_requests, recompute, run
from tests.tiny_models import build_tiny


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
