"""Sampled ids are extended by a reply only where the template provably writes the same."""

import pytest

from posttrain.tasks.chat import Chat
from tests.tasks.chat_templates import CHATML, FORCED_THINK, PLAIN, QUIET, STYLES, build_style, build_tokenizer

QUESTION = {"role": "user", "content": "what is the answer"}
ANSWER = {"role": "assistant", "content": "it is 42"}
SECOND = {"role": "user", "content": "hello there"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nit is 42"}
LOOKUP = {"role": "tool", "content": "42", "name": "lookup", "tool_call_id": "abcdefgh1"}


@pytest.fixture(params=sorted(STYLES))
def style(request) -> str:
    return request.param


class TestBridge:
    @staticmethod
    def sampled(chat: Chat, text: str, stop: bool = True) -> tuple[int, ...]:
        ids = chat.tokenizer.encode(text, add_special_tokens=False)
        return (*chat.prompt_ids([QUESTION]), *ids, *([chat.end_of_turn_id] if stop else []))

    def test_gives_the_templates_next_prompt(self, style):
        chat = Chat(build_style(style))
        text = " it is 42" if style == "mistral" else "it is 42"
        bridged = chat.bridge(self.sampled(chat, text), [SECOND])
        expected = None if style == "mistral" else chat.prompt_ids([QUESTION, ANSWER, SECOND])
        assert expected == bridged

    def test_never_touches_the_sampled_ids(self):
        chat = Chat(build_tokenizer())
        letters = [chat.tokenizer.convert_tokens_to_ids(letter) for letter in "answer"]
        row = (*chat.prompt_ids([QUESTION]), *letters, chat.end_of_turn_id)
        assert row == chat.bridge(row, [SECOND])[: len(row)]
        assert row != chat.prompt_ids([QUESTION, {"role": "assistant", "content": "answer"}, SECOND])[: len(row)]

    def test_closes_a_turn_that_was_cut_off(self):
        chat = Chat(build_tokenizer())
        assert chat.bridge(self.sampled(chat, "it is"), [SECOND]) == chat.bridge(
            self.sampled(chat, "it is", stop=False), [SECOND]
        )

    def test_agrees_with_the_rows_of_demonstrations(self):
        chat = Chat(build_tokenizer())
        bridged = chat.bridge(self.sampled(chat, "it is 42"), [SECOND])
        assert bridged == chat.encode_demonstration([QUESTION, ANSWER, SECOND, ANSWER]).ids[: len(bridged)]

    def test_over_a_tools_reply(self):
        chat = Chat(build_style("qwen3"))
        text = chat.decode(chat.bridge(self.sampled(chat, THOUGHT["content"]), [LOOKUP]), skip_special=False)
        scaffold = (
            "<|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        assert text.endswith(THOUGHT["content"] + scaffold)

    def test_over_two_replies_at_once(self):
        chat = Chat(build_style("qwen3"))
        text = chat.decode(chat.bridge(self.sampled(chat, "calls"), [LOOKUP, LOOKUP]), skip_special=False)
        assert 1 == text.split("calls")[1].count("<|im_start|>user")
        assert 2 == text.count("<tool_response>")

    def test_a_template_that_drops_thinking_refuses_over_a_user_message(self):
        chat = Chat(build_style("qwen3"))
        assert chat.bridge(self.sampled(chat, THOUGHT["content"]), [SECOND]) is None

    def test_a_template_that_moves_the_system_message_refuses(self):
        chat = Chat(build_style("mistral"))
        assert chat.bridge(self.sampled(chat, " it is 42"), [SECOND]) is None

    def test_a_role_the_template_does_not_know(self):
        assert Chat(build_style("gemma")).bridge((5, 6), [LOOKUP]) is None

    def test_a_reply_the_template_would_drop(self):
        assert Chat(build_tokenizer(QUIET)).bridge((5, 6), [LOOKUP]) is None

    def test_a_turn_ended_by_another_stop_token_refuses(self):
        chat = Chat(build_style("phi3"))
        assert chat.bridge((*self.sampled(chat, "it", stop=False), chat.tokenizer.eos_token_id), [SECOND]) is None

    def test_a_template_that_closes_nothing_refuses(self):
        chat = Chat(build_tokenizer(PLAIN))
        assert chat.bridge(self.sampled(chat, "it is 42"), [SECOND]) is None

    def test_a_template_that_wants_a_call_before_a_tools_reply(self):
        chat = Chat(build_style("calls_first"))
        text = chat.decode(chat.bridge(self.sampled(chat, "calls"), [LOOKUP]), skip_special=False)
        assert text.endswith("calls<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n")

    def test_a_tools_reply_that_the_template_writes_as_json(self):
        chat = Chat(build_style("llama3"))
        reply = {"role": "tool", "content": 'line "one"\nline two'}
        text = chat.decode(chat.bridge(self.sampled(chat, "calls"), [reply]), skip_special=False)
        assert r'"line \"one\"\nline two"<|eot_id|>' in text

    def test_blanks_that_the_closing_token_swallows(self):
        tokenizer = build_tokenizer(STYLES["phi3"], eos="<|endoftext|>", swallow="<|end|>")
        chat = Chat(tokenizer)
        assert chat.prompt_ids([QUESTION, ANSWER, SECOND]) == chat.bridge(self.sampled(chat, "it is 42"), [SECOND])

    def test_nothing_to_bridge(self):
        assert [None, None] == [Chat(build_tokenizer()).bridge((), [SECOND]), Chat(build_tokenizer()).bridge((5,), [])]


class TestWitness:
    @pytest.mark.parametrize(
        ("name", "tool", "user"),
        [
            ("chatml", True, True),
            ("no_newline", True, True),
            ("llama3", True, True),
            ("qwen3", True, False),
            ("gemma", None, True),
            ("mistral", None, False),
            ("phi3", True, True),
            ("calls_first", True, True),
        ],
    )
    def test_says_what_a_template_keeps(self, name, tool, user):
        witness = Chat(build_style(name)).witness()
        assert (tool, user) == (witness.keeps_over_tool, witness.keeps_over_user)

    def test_a_prompt_that_opens_a_thought(self):
        witness = Chat(build_tokenizer(FORCED_THINK)).witness()
        assert (True, True) == (witness.keeps_over_tool, witness.keeps_over_user)

    def test_a_template_that_drops_thinking_even_before_a_tool(self):
        template = CHATML.replace("message['content']", "message['content'].split('</think>')[-1].lstrip()")
        assert not Chat(build_tokenizer(template)).witness().keeps_over_tool

    def test_the_detail_says_what_it_means(self):
        assert "over a user's message: rewritten" in Chat(build_style("qwen3")).witness().detail

    def test_the_detail_names_a_template_that_writes_the_date(self):
        chat = Chat(build_tokenizer("{{ strftime_now('%Y') }}" + CHATML))
        assert "today's date" in chat.witness().detail

    def test_the_detail_names_a_template_that_closes_nothing(self):
        assert "closes no turn" in Chat(build_tokenizer(PLAIN)).witness().detail
