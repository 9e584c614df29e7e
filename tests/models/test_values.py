"""Values: read before the token, behind a place, by a head on either trunk, kept beside the weights."""

import numpy as np
import pytest
import torch

from posttrain.batches.build import scatter
from posttrain.batches.pack import pack
from posttrain.errors import ModelError
from posttrain.models.rows import tensors
from posttrain.models.values import HEAD_FILE, Critic, ValueHead, last_trained, read_behind
from tests.models.samples import ragged_groups, sample
from tests.tiny_models import build_tiny

LAYOUTS = ("padded", "packed", "shared")


def random_head(critic, seed=3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        critic.head.linear.weight.copy_(torch.randn(critic.head.linear.weight.shape, generator=generator))
        critic.head.linear.bias.fill_(0.25)
    return critic


def build_critic(**options):
    return random_head(Critic(build_tiny(), own=build_tiny(seed=5), **options))


@torch.no_grad()
def plain_values(critic, one):
    """Value of the state after each token of a row, from the model's own forward on the row alone."""
    hidden = critic.own.model(input_ids=torch.tensor(one.ids)[None], use_cache=False).last_hidden_state[0]
    return (hidden @ critic.head.linear.weight[0] + critic.head.linear.bias).double().numpy()


@torch.no_grad()
def flat_values(critic, samples, layout):
    found = {}
    for microbatch in pack(samples, token_budget=200, layout=layout):
        values = critic.values(tensors(microbatch, "cpu")).double().numpy()
        for one, row in zip(microbatch.samples, scatter(microbatch.samples, values), strict=True):
            found[id(one)] = row
    return [found[id(one)] for one in samples]


def test_a_new_head_gives_zero():
    assert [0.0, 0.0] == ValueHead(4)(torch.randn(2, 4)).tolist()


def test_a_head_is_wide_whatever_the_weights_are():
    assert torch.float32 == ValueHead(4, dtype=torch.bfloat16)(torch.randn(2, 4, dtype=torch.bfloat16)).dtype
    assert torch.float64 == ValueHead(4, dtype=torch.float64)(torch.randn(2, 4, dtype=torch.float64)).dtype


def test_the_value_of_a_token_is_that_of_the_state_before_it():
    critic = build_critic()
    one = sample([5, 6, 7], [8, 9, 10])
    expected = plain_values(critic, one)[[2, 3, 4]]
    (row,) = flat_values(critic, [one], "padded")
    np.testing.assert_allclose(row[[3, 4, 5]], expected, atol=1e-5)


def test_the_value_of_a_token_does_not_depend_on_it():
    critic = build_critic()
    one, other = sample([5, 6, 7], [8, 9]), sample([5, 6, 7], [8, 44])
    (row,), (changed,) = (flat_values(critic, [x], "padded") for x in (one, other))
    assert row[4] == changed[4]


def test_the_first_token_of_a_turn_is_valued_at_the_last_observation():
    critic = build_critic()
    one = sample([5, 6], [8, 9, 30, 31, 11], mask=[True, True, False, False, True])
    (row,) = flat_values(critic, [one], "padded")
    assert pytest.approx(plain_values(critic, one)[5], abs=1e-5) == row[6]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_same_values(layout):
    critic, samples = build_critic(), ragged_groups()
    for one, row in zip(samples, flat_values(critic, samples, layout), strict=True):
        places = np.flatnonzero(one.loss_mask)
        np.testing.assert_allclose(row[places], plain_values(critic, one)[places - 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_read_behind_reads_at_the_place_itself(layout):
    critic = build_critic()
    samples = [sample([5, 6, 7], [8, 9, 10]), sample([5, 6, 7], [11, 12], rollout=1)]
    probes = [read_behind(samples[0], [3, 5]), read_behind(samples[1], [4])]
    rows = flat_values(critic, probes, layout)
    np.testing.assert_allclose(rows[0][[4, 6]], plain_values(critic, samples[0])[[3, 5]], atol=1e-5)
    np.testing.assert_allclose(rows[1][5], plain_values(critic, samples[1])[4], atol=1e-5)


def test_read_behind_ignores_what_stands_behind_the_row():
    critic = build_critic()
    alone = read_behind(sample([5, 6], [8, 9]), [3])
    beside = [read_behind(sample([5, 6], [8, 9]), [3]), read_behind(sample([5, 6], [7] * 9, group=1), [10])]
    assert (
        pytest.approx(flat_values(critic, beside, "padded")[0][4], abs=1e-6)
        == (flat_values(critic, [alone], "padded")[0][4])
    )


def test_read_behind_lengthens_every_array():
    one = read_behind(sample([5], [8, 9], values=np.ones(3), mismatch=np.ones(3)), [2])
    arrays = (one.loss_mask, one.advantages, one.rollout_logprobs, one.versions, one.turns, one.values, one.mismatch)
    assert {4} == {len(array) for array in (one.ids, *arrays, one.token_weight["policy"])}
    assert [False, False, False, True] == one.loss_mask.tolist()


@pytest.mark.parametrize("place", [-1, 3])
def test_read_behind_refuses_places_outside_the_row(place):
    with pytest.raises(ValueError, match="outside a row of 3 tokens"):
        read_behind(sample([5], [8, 9]), [place])


def test_last_trained_skips_what_follows_the_last_turn():
    assert 2 == last_trained(sample([5], [8, 9, 30], mask=[True, True, False]))


def test_a_row_without_sampled_tokens_has_no_score():
    with pytest.raises(ValueError, match="no sampled token"):
        last_trained(sample([5], [8], mask=[False]))


def test_a_shared_trunk_needs_hidden_states():
    critic = Critic(build_tiny())
    rows = tensors(pack([sample([5], [8])], token_budget=9, layout="padded")[0], "cpu")
    with pytest.raises(ValueError, match="policy's hidden states"):
        critic.values(rows)


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_saved_loads_again_bit_for_bit(shared, tmp_path):
    def make(seed):
        return Critic(build_tiny(), own=None if shared else build_tiny(seed=seed))

    one, other = random_head(make(5)), make(6)
    (tmp_path / "model").mkdir()
    one.save(tmp_path)
    other.load(tmp_path)
    pairs = zip(one.module.named_parameters(), other.module.named_parameters(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_a_folder_with_backbone_and_head_is_a_model_folder_with_one_file_more(tmp_path):
    build_critic().save(tmp_path)
    assert {HEAD_FILE, "config.json", "model.safetensors"} <= {p.name for p in (tmp_path / "critic/model").iterdir()}


def test_a_missing_head_says_what_to_give(tmp_path):
    with pytest.raises(ModelError, match="is not a head of this model"):
        ValueHead(4).load(tmp_path)


def test_a_head_of_another_width_is_refused(tmp_path):
    ValueHead(5).save(tmp_path)
    with pytest.raises(ModelError, match=r"shapes \[\(1,\), \(1, 5\)\]"):
        ValueHead(4).load(tmp_path)
