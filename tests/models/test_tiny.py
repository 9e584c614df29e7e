"""The toy is deterministic, small in tokens and loads like any model."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.models.tiny import CHARACTERS, build_tokenizer, build_toy

SMALL = {"hidden": 32, "intermediate": 48, "layers": 2, "heads": 4, "kv_heads": 2, "window": 64}
QUESTION = [{"role": "user", "content": "47+85="}]


def encode(tokenizer, messages, **options):
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return tokenizer.encode(text, add_special_tokens=False)


def test_default_size_is_about_two_million():
    model, _ = build_toy(seed=0)
    assert 1.5e6 < sum(parameter.numel() for parameter in model.parameters()) < 2.5e6


def test_same_seed_same_weights():
    first, second = (build_toy(seed=3, **SMALL)[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_seed_other_weights():
    first, second = (build_toy(seed=seed, **SMALL)[0].state_dict() for seed in (1, 2))
    assert not torch.equal(first["model.embed_tokens.weight"], second["model.embed_tokens.weight"])


def test_building_leaves_torchs_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build_toy(seed=9, **SMALL)
    assert expected == torch.rand(1)


def test_model_is_in_evaluation_mode_and_in_the_wanted_type():
    model, _ = build_toy(seed=0, dtype=torch.float64, **SMALL)
    assert (False, torch.float64) == (model.training, model.dtype)


def test_embeddings_are_tied():
    model, _ = build_toy(seed=0, **SMALL)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_every_id_of_the_tokenizer_has_an_embedding():
    model, tokenizer = build_toy(seed=0, **SMALL)
    assert len(tokenizer) == model.get_input_embeddings().weight.shape[0]


def test_prompt_costs_six_characters_and_five_marks():
    assert 6 + 5 == len(encode(build_tokenizer(), QUESTION, add_generation_prompt=True))


def test_end_of_message_is_the_stop_token_and_is_not_the_pad():
    tokenizer = build_tokenizer()
    assert ("<|im_end|>", "<|pad|>") == (tokenizer.eos_token, tokenizer.pad_token)
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_every_character_is_one_token_and_comes_back():
    tokenizer = build_tokenizer()
    ids = tokenizer.encode(CHARACTERS, add_special_tokens=False)
    assert len(CHARACTERS) == len(ids)
    assert CHARACTERS == tokenizer.decode(ids)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_role_words_are_single_tokens(role):
    assert 1 == len(build_tokenizer().encode(role, add_special_tokens=False))


def test_text_around_role_words_comes_back():
    tokenizer = build_tokenizer()
    text = "the users' tools, systematically"
    assert text == tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))


def test_unknown_characters_become_one_unknown_token_each():
    tokenizer = build_tokenizer()
    assert [tokenizer.unk_token_id] * 2 == tokenizer.encode("é漢", add_special_tokens=False)


def test_special_tokens_leave_decoded_text_when_skipped():
    tokenizer = build_tokenizer()
    ids = [*tokenizer.encode("132", add_special_tokens=False), tokenizer.eos_token_id]
    assert "132" == tokenizer.decode(ids, skip_special_tokens=True)


def test_template_has_no_generation_marks():
    assert "generation %" not in build_tokenizer().chat_template


@pytest.mark.parametrize("reply", [{"role": "tool", "content": "4"}, {"role": "user", "content": "sure?"}])
def test_a_longer_conversation_begins_with_the_shorter_one(reply):
    tokenizer = build_tokenizer()
    prompt = encode(tokenizer, QUESTION, add_generation_prompt=True)
    completion = [*tokenizer.encode("132", add_special_tokens=False), tokenizer.eos_token_id]
    longer = [*QUESTION, {"role": "assistant", "content": "132"}, reply]
    whole = encode(tokenizer, longer, add_generation_prompt=True)
    assert prompt + completion == whole[: len(prompt) + len(completion)]


def test_template_writes_tools_and_calls():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = build_tokenizer().apply_chat_template(messages, tools=[{"name": "add"}], tokenize=False)
    assert '<|im_start|>system{"name": "add"}\n<|im_end|>' in text
    assert '<|im_start|>assistant<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>' in text


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    model, tokenizer = build_toy(seed=4, **SMALL)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_saved_model_loads_with_equal_weights(saved):
    expected = build_toy(seed=4, **SMALL)[0].state_dict()
    actual = AutoModelForCausalLM.from_pretrained(saved).state_dict()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_saved_tokenizer_loads_as_it_was(saved):
    expected, actual = build_tokenizer(64), AutoTokenizer.from_pretrained(saved)
    text = expected.apply_chat_template(QUESTION, tokenize=False) + "é users\n"
    assert expected.encode(text, add_special_tokens=False) == actual.encode(text, add_special_tokens=False)
    assert expected.chat_template == actual.chat_template
    assert (expected.eos_token_id, expected.pad_token_id) == (actual.eos_token_id, actual.pad_token_id)


def test_window_reaches_model_and_tokenizer():
    model, tokenizer = build_toy(seed=0, **SMALL)
    assert (64, 64) == (model.config.max_position_embeddings, tokenizer.model_max_length)
