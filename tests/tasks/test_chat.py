"""Messages become tokens exactly, in the styles of real templates."""

import math

import pytest

from posttrain.errors import DataError, ModelError
from posttrain.tasks.chat import Chat
from tests.tasks.chat_templates import (
    CHATML,
    CLOSING,
    FORCED_THINK,
    GEMMA,
    PLAIN,
    QUIET,
    STYLES,
    build_style,
    build_tokenizer,
)

QUESTION = {"role": "user", "content": "what is the answer"}
ANSWER = {"role": "assistant", "content": "it is 42"}
SECOND = {"role": "user", "content": "hello there"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nit is 42"}
LOOKUP = {"role": "tool", "content": "42", "name": "lookup", "tool_call_id": "abcdefgh1"}


def trained(chat: Chat, segment) -> list[str]:
    """Texts of the trained runs, one per turn, special tokens shown."""
    return [
        chat.decode([i for i, t in zip(segment.ids, segment.turns, strict=True) if t == turn], skip_special=False)
        for turn in sorted(set(segment.turns) - {-1})
    ]


def rendered(tokenizer, messages, prompt=False) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)


@pytest.fixture(params=sorted(STYLES))
def style(request) -> str:
    return request.param


class TestPrompt:
    def test_is_the_templates_text_without_further_special_tokens(self):
        tokenizer = build_tokenizer()
        text = rendered(tokenizer, [QUESTION], prompt=True)
        assert tuple(tokenizer.encode(text, add_special_tokens=False)) == Chat(tokenizer).prompt_ids([QUESTION])

    def test_an_answers_text_stands_behind_the_prompt_as_it_is(self):
        chat = Chat(build_style("chatml"))
        prompt, answer = chat.answer_ids([QUESTION], "it is 42")
        assert chat.prompt_ids([QUESTION]) == prompt
        assert "it is 42" == chat.decode(answer, skip_special=False)

    def test_decodes_to_the_text(self, style):
        tokenizer = build_style(style)
        chat = Chat(tokenizer)
        text = rendered(tokenizer, [QUESTION], prompt=True)
        assert chat.decode(chat.prompt_ids([QUESTION]), skip_special=False).startswith(text)

    def test_writes_the_role_header_where_the_template_forgets_it(self):
        chat = Chat(build_style("no_generation_prompt"))
        assert chat.decode(chat.prompt_ids([QUESTION]), skip_special=False).endswith("<|im_start|>assistant\n")

    def test_adds_no_header_to_a_template_that_needs_none(self):
        chat = Chat(build_style("mistral"))
        assert chat.decode(chat.prompt_ids([QUESTION]), skip_special=False).endswith("[/INST]")

    def test_no_template_says_how_to_give_one(self):
        with pytest.raises(ModelError, match=r'model.chat_template="file.jinja"'):
            Chat(build_tokenizer(None))

    def test_a_given_template_replaces_the_tokenizers(self):
        chat = Chat(build_tokenizer(CHATML), template=GEMMA)
        assert "<start_of_turn>user" in chat.decode(chat.prompt_ids([QUESTION]), skip_special=False)

    def test_a_template_is_read_from_a_file(self, tmp_path):
        file = tmp_path / "gemma.jinja"
        file.write_text(GEMMA, encoding="utf-8")
        assert Chat(build_tokenizer(None), template=GEMMA).prompt_ids([QUESTION]) == Chat(
            build_tokenizer(None), template=str(file)
        ).prompt_ids([QUESTION])

    def test_a_template_file_that_is_not_there(self):
        with pytest.raises(ModelError, match=r"missing.jinja does not exist"):
            Chat(build_tokenizer(None), template="missing.jinja")

    def test_a_refused_role_names_the_reason(self):
        with pytest.raises(ModelError, match="System role not supported"):
            Chat(build_style("gemma")).prompt_ids([{"role": "system", "content": "rules"}, QUESTION])

    def test_a_system_message_that_is_silently_dropped_is_an_error(self):
        with pytest.raises(ModelError, match=r"leaves out message 0 \(role 'system'\)"):
            Chat(build_tokenizer(QUIET)).prompt_ids([{"role": "system", "content": "rules"}, QUESTION])

    def test_no_messages(self):
        with pytest.raises(ModelError, match="at least one message"):
            Chat(build_tokenizer()).prompt_ids([])

    def test_tools_reach_the_template(self):
        template = "{% if tools %}{{ tools[0].function.name }}\n{% endif %}" + CHATML
        chat = Chat(build_tokenizer(template))
        tools = [{"type": "function", "function": {"name": "lookup", "parameters": {}}}]
        assert chat.decode(chat.prompt_ids([QUESTION], tools), skip_special=False).startswith("lookup\n")


class TestStop:
    def test_the_closing_token_is_found_in_the_template(self, style):
        tokenizer = build_style(style)
        assert tokenizer.convert_tokens_to_ids(CLOSING[style]) == Chat(tokenizer).end_of_turn_id

    def test_stop_ids_hold_the_closing_token_the_tokenizers_and_the_generation_configs(self):
        tokenizer = build_style("phi3")
        ids = tokenizer.convert_tokens_to_ids(["<|end|>", "<|endoftext|>", "<|user|>"])
        assert frozenset(ids) == Chat(tokenizer, eos_ids=[ids[2]]).stop_ids

    def test_a_template_that_closes_nothing_ends_with_eos(self):
        tokenizer = build_tokenizer(PLAIN)
        assert tokenizer.eos_token_id == Chat(tokenizer).end_of_turn_id

    def test_nothing_that_could_end_a_turn_is_an_error(self):
        with pytest.raises(ModelError, match="sampling could never stop"):
            Chat(build_tokenizer(PLAIN, eos=None))


class TestDemonstration:
    def test_begins_with_exactly_the_prompt_of_generation(self, style):
        chat = Chat(build_style(style))
        segment = chat.encode_demonstration([QUESTION, ANSWER])
        assert chat.prompt_ids([QUESTION]) == segment.ids[: segment.prompt_length]

    def test_is_the_templates_text_up_to_the_closing_token(self, style):
        tokenizer = build_style(style)
        chat = Chat(tokenizer)
        text = chat.decode(chat.encode_demonstration([QUESTION, ANSWER]).ids, skip_special=False)
        whole = rendered(tokenizer, [QUESTION, ANSWER])
        assert whole[: whole.rindex(CLOSING[style]) + len(CLOSING[style])] == text

    def test_content_and_stop_token_train_and_nothing_else(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, ANSWER])
        content = tuple(chat.tokenizer.encode("it is 42", add_special_tokens=False))
        expected = (False,) * segment.prompt_length + (True,) * (len(content) + 1)
        assert (expected, (*content, chat.end_of_turn_id)) == (segment.loss_mask, segment.ids[segment.prompt_length :])

    def test_the_stop_token_trains_though_it_is_the_padding_token(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, ANSWER])
        assert (chat.tokenizer.pad_token_id, True) == (segment.ids[-1], segment.loss_mask[-1])

    def test_a_closing_token_in_the_prompt_does_not_train(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, ANSWER])
        places = [i for i, token in enumerate(segment.ids) if token == chat.end_of_turn_id]
        assert [False, False, True] == [segment.loss_mask[i] for i in places]

    def test_what_no_policy_sampled_is_marked(self):
        segment = Chat(build_tokenizer()).encode_demonstration([QUESTION, ANSWER])
        assert all(math.isnan(value) for value in segment.rollout_logprobs)
        assert {-1} == set(segment.versions)

    def test_all_turns_train_and_are_numbered(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, ANSWER, SECOND, {"role": "assistant", "content": "hello"}])
        assert ["it is 42<|im_end|>", "hello<|im_end|>"] == trained(chat, segment)

    def test_the_newline_after_an_earlier_turn_does_not_train(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, ANSWER, SECOND, ANSWER])
        first_end = max(i for i, turn in enumerate(segment.turns) if turn == 0)
        newline = chat.tokenizer.encode("\n", add_special_tokens=False)[0]
        assert (newline, False) == (segment.ids[first_end + 1], segment.loss_mask[first_end + 1])

    def test_last_only(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, ANSWER, SECOND, ANSWER], last_only=True)
        assert ["it is 42<|im_end|>"] == trained(chat, segment)
        assert chat.prompt_ids([QUESTION, ANSWER, SECOND]) == segment.ids[: segment.prompt_length]

    def test_several_turns_have_the_tokens_of_the_whole_text(self):
        tokenizer = build_tokenizer()
        messages = [QUESTION, ANSWER, SECOND, ANSWER]
        whole = tokenizer.encode(rendered(tokenizer, messages).removesuffix("\n"), add_special_tokens=False)
        assert tuple(whole) == Chat(tokenizer).encode_demonstration(messages).ids

    def test_a_boundary_never_merges_prompt_and_content(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, {"role": "assistant", "content": "\n\nit is"}])
        assert chat.prompt_ids([QUESTION]) == segment.ids[: segment.prompt_length]
        assert ["\n\nit is<|im_end|>"] == trained(chat, segment)

    def test_an_empty_answer_trains_the_stop_token_alone(self):
        chat = Chat(build_tokenizer())
        segment = chat.encode_demonstration([QUESTION, {"role": "assistant", "content": ""}])
        assert ["<|im_end|>"] == trained(chat, segment)

    def test_thinking_that_the_template_adds_trains_too(self):
        chat = Chat(build_style("qwen3"))
        segment = chat.encode_demonstration([QUESTION, ANSWER])
        assert ["<think>\n\n</think>\n\nit is 42<|im_end|>"] == trained(chat, segment)

    def test_a_rewritten_turn_does_not_train_in_the_single_row(self):
        chat = Chat(build_style("qwen3"))
        segment = chat.encode_demonstration([QUESTION, THOUGHT, SECOND, THOUGHT])
        assert ["<think>\nhm\n</think>\n\nit is 42<|im_end|>"] == trained(chat, segment)

    def test_segments_train_every_turn_once_though_history_is_rewritten(self):
        chat = Chat(build_style("qwen3"))
        segments = chat.demonstration_segments([QUESTION, THOUGHT, SECOND, THOUGHT])
        text = "<think>\nhm\n</think>\n\nit is 42<|im_end|>"
        assert [[text], [text]] == [trained(chat, segment) for segment in segments]
        assert [{-1, 0}, {-1, 1}] == [set(segment.turns) for segment in segments]

    def test_thinking_before_a_tools_reply_stays_in_the_row(self):
        chat = Chat(build_style("qwen3"))
        segments = chat.demonstration_segments([QUESTION, THOUGHT, LOOKUP, THOUGHT])
        assert 1 == len(segments)
        assert 2 == len(trained(chat, segments[0]))

    def test_a_tool_call_trains_as_the_template_writes_it(self):
        chat = Chat(build_style("llama3"))
        call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": {"word": "it"}}}
        messages = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}, LOOKUP, ANSWER]
        expected = ['{"name": "lookup", "arguments": {"word": "it"}}<|eot_id|>', "it is 42<|eot_id|>"]
        assert expected == trained(chat, chat.encode_demonstration(messages))

    def test_an_end_token_after_the_last_turn_only_is_no_part_of_the_row(self):
        chat = Chat(build_style("phi3"))
        segment = chat.encode_demonstration([QUESTION, ANSWER, SECOND, ANSWER])
        assert ["it is 42<|end|>", "it is 42<|end|>"] == trained(chat, segment)

    def test_a_template_that_closes_nothing_trains_eos_in_a_row_per_turn(self):
        chat = Chat(build_tokenizer(PLAIN))
        segments = chat.demonstration_segments([QUESTION, ANSWER, SECOND, ANSWER])
        assert [[" it is 42<|im_end|>"]] * 2 == [trained(chat, segment) for segment in segments]

    def test_blanks_that_a_special_token_swallows_are_not_put_back(self):
        template = STYLES["phi3"]
        tokenizer = build_tokenizer(template, eos="<|endoftext|>", swallow="<|end|>")
        messages = [QUESTION, ANSWER, SECOND, ANSWER]
        text = rendered(tokenizer, messages).removesuffix("\n<|endoftext|>")
        assert (
            tuple(tokenizer.encode(text, add_special_tokens=False))
            == Chat(tokenizer).encode_demonstration(messages).ids
        )

    def test_a_prompt_that_opens_a_thought_wants_demonstrations_that_think(self):
        with pytest.raises(ModelError, match=r"message 1 \(assistant\) otherwise than as an answer"):
            Chat(build_tokenizer(FORCED_THINK)).encode_demonstration([QUESTION, ANSWER])

    def test_a_thought_goes_on_where_the_prompt_opened_it(self):
        chat = Chat(build_tokenizer(FORCED_THINK))
        segment = chat.encode_demonstration([QUESTION, THOUGHT])
        assert ["hm\n</think>\n\nit is 42<|im_end|>"] == trained(chat, segment)

    def test_a_stop_token_inside_the_content_is_refused(self):
        with pytest.raises(DataError, match=r"message 1 \(assistant\) holds '<\|im_end\|>'"):
            Chat(build_tokenizer()).encode_demonstration([QUESTION, {"role": "assistant", "content": "a<|im_end|>b"}])

    @pytest.mark.parametrize("messages", [[], [QUESTION], [ANSWER], [ANSWER, QUESTION]])
    def test_no_demonstration(self, messages):
        with pytest.raises(DataError, match="begins with a prompt and ends with an assistant message"):
            Chat(build_tokenizer()).encode_demonstration(messages)

    def test_an_answer_that_the_template_loses_is_an_error(self):
        template = CHATML.replace(
            "message['content']", "(message['content'] if message['content'] != 'it is 42' else '')"
        )
        with pytest.raises(ModelError, match=r"leaves out the text of message 1"):
            Chat(build_tokenizer(template)).encode_demonstration([QUESTION, ANSWER])


class TestHash:
    def test_is_the_same_for_the_same_template(self):
        assert Chat(build_tokenizer()).template_hash == Chat(build_tokenizer()).template_hash

    def test_changes_with_the_template(self):
        assert Chat(build_tokenizer()).template_hash != Chat(build_tokenizer(), template=GEMMA).template_hash

    def test_changes_with_the_special_tokens(self):
        assert Chat(build_tokenizer()).template_hash != Chat(build_tokenizer(eos="</s>")).template_hash


class TestDecode:
    def test_hides_special_tokens_unless_asked(self):
        chat = Chat(build_tokenizer())
        ids = [*chat.tokenizer.encode("it is 42", add_special_tokens=False), chat.end_of_turn_id]
        assert ("it is 42", "it is 42<|im_end|>") == (chat.decode(ids), chat.decode(ids, skip_special=False))

    def test_leaves_blanks_as_they_are(self):
        chat = Chat(build_tokenizer())
        assert "a , b ." == chat.decode(chat.tokenizer.encode("a , b .", add_special_tokens=False))
