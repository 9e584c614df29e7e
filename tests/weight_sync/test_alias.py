"""Weight sync by aliasing: the engine holds the learner's tensors, gets the version, and the weights a digest."""

import asyncio

import pytest
import torch

from posttrain.engines.local import Config as EngineConfig
from posttrain.engines.local import LocalEngine
from posttrain.engines.scripted import Config as ScriptConfig
from posttrain.engines.scripted import ScriptedEngine
from posttrain.errors import ModelError
from posttrain.types import Sampling
from posttrain.weight_sync.alias import Alias, Config
from tests.tiny_models import build_tiny


class Holder:
    """As much of a learner as a weight sync sees."""

    def __init__(self, model):
        self.model = model

    def named_tensors(self):
        return self.model.named_parameters()


def build_engine(model):
    return LocalEngine(EngineConfig(), model, None, frozenset(), 128)


def carry(learner, engines, version=1, **config):
    return asyncio.run(Alias(Config(**config)).carry(learner, engines, version))


def digest(model):
    return carry(Holder(model), []).digest


def test_the_engine_gets_the_version_and_nothing_is_moved():
    model = build_tiny()
    engine = build_engine(model)
    receipt = carry(Holder(model), [engine], 4)
    assert (4, 4, 0) == (engine.version, receipt.version, receipt.size)
    assert receipt.seconds > 0


def test_after_a_step_the_engine_samples_with_the_new_weights():
    model = build_tiny()
    engine = build_engine(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    carry(Holder(model), [engine])
    sampling = Sampling(max_new_tokens=6)
    sampled = asyncio.run(engine.generate([4, 5], sampling, seed=0))
    assert asyncio.run(build_engine(model).generate([4, 5], sampling, seed=0)).ids == sampled.ids
    assert (1,) * 6 == sampled.versions


def test_several_engines_are_all_told():
    model = build_tiny()
    engines = [build_engine(model), build_engine(model)]
    carry(Holder(model), engines, 2)
    assert [2, 2] == [engine.version for engine in engines]


def test_an_engine_with_a_copy_of_the_weights_is_refused():
    engine = build_engine(build_tiny())
    with pytest.raises(ModelError, match="does not hold the learner's tensors"):
        carry(Holder(build_tiny()), [engine])
    assert 0 == engine.version


def test_an_engine_with_one_other_tensor_is_refused():
    model = build_tiny()
    engine = build_engine(model)
    learner = Holder(model)
    tensors = dict(model.named_parameters())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].clone()
    learner.named_tensors = tensors.items
    with pytest.raises(ModelError, match="does not hold the learner's tensors"):
        carry(learner, [engine])


def test_an_engine_that_cannot_alias_is_refused():
    class Remote:
        version = 0

    with pytest.raises(ModelError, match=r"Remote cannot hold the learner's tensors: it has no aliases\(\)"):
        carry(Holder(build_tiny()), [Remote()])


def test_an_engine_that_ignores_the_version_is_found_out():
    class Deaf(ScriptedEngine):
        async def load(self, tensors, version):
            pass

    with pytest.raises(ModelError, match="Deaf is at version 0 after loading version 1"):
        carry(Holder(build_tiny()), [Deaf(ScriptConfig())])


def test_the_scripted_engine_takes_any_weights():
    engine = ScriptedEngine(ScriptConfig())
    carry(Holder(build_tiny()), [engine], 3)
    assert 3 == engine.version


def test_equal_weights_have_equal_digests():
    assert digest(build_tiny()) == digest(build_tiny())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_smallest_change_of_any_value_changes_the_digest(dtype):
    model = build_tiny(dtype=dtype)
    before = digest(model)
    with torch.no_grad():
        weight = model.model.layers[1].mlp.down_proj.weight
        weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0, dtype=dtype))
    assert before != digest(model)


def test_other_names_or_shapes_have_another_digest():
    model = build_tiny()
    renamed, reshaped = Holder(model), Holder(model)
    renamed.named_tensors = {f"x.{name}": tensor for name, tensor in model.named_parameters()}.items
    reshaped.named_tensors = {name: tensor.unsqueeze(0) for name, tensor in model.named_parameters()}.items
    assert 3 == len({digest(model), carry(renamed, []).digest, carry(reshaped, []).digest})


def test_the_digest_does_not_depend_on_the_number_of_threads():
    model = build_tiny()
    before = digest(model)
    torch.set_num_threads(2)
    assert before == digest(model)


def test_the_digest_can_be_left_out():
    assert "" == carry(Holder(build_tiny()), [], digest=False).digest
