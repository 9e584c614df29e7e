"""Whether a teacher reads the student's tokens: by hash and by witness, with what differs."""

import pytest

from posttrain.config import Teacher
from posttrain.errors import ModelError
from posttrain.models.tiny import build_tokenizer
from posttrain.tasks.chat import Chat
from posttrain.teachers import differences, refuse_other_tokens


def changed(change=lambda tokenizer: None):
    """The toy's chat after a change of its tokenizer."""
    tokenizer = build_tokenizer()
    change(tokenizer)
    return Chat(tokenizer)


def template(old, new):
    """A change of the template's text."""

    def change(tokenizer):
        assert old in tokenizer.chat_template
        tokenizer.chat_template = tokenizer.chat_template.replace(old, new)

    return change


def test_equal_tokenizers_do_not_differ():
    assert [] == differences(changed(), changed())


def test_a_further_token_is_named():
    found = differences(changed(), changed(lambda tokenizer: tokenizer.add_tokens(["47+"])))
    assert "1 vocabulary entries differ, for example '47+'" == found[0]
    assert "other ids for the text '47+85='" == found[1]


def test_a_token_that_no_probe_has_is_found_by_the_vocabulary():
    assert ["1 vocabulary entries differ, for example 'qqq'"] == differences(
        changed(), changed(lambda tokenizer: tokenizer.add_tokens(["qqq"]))
    )


def test_another_template_is_found_by_hash_and_by_witness():
    found = differences(changed(), changed(template("message.role + ", "message.role + ' ' + ")))
    assert ["the chat templates or their special tokens differ", "other ids for the conversation"] == [
        line.partition(" (")[0] for line in found
    ]


def test_a_template_that_only_treats_tools_differently_is_found_by_hash():
    found = differences(changed(), changed(template("<tool_call>", "<call>")))
    assert ["the chat templates or their special tokens differ"] == found


def test_another_end_of_turn_is_found():
    assert any(
        "a turn ends with id" in line for line in differences(changed(), changed(template("<|im_end|>", "<|pad|>")))
    )


def test_the_refusal_says_who_what_and_what_to_do():
    other = changed(template("message.role + ", "message.role + ' ' + "))
    with pytest.raises(ModelError, match=r"teacher 'big' \(owner/big\) does not read .*chat_template = FILE"):
        refuse_other_tokens(Teacher(path="owner/big", name="big"), changed(), other)


def test_a_fitting_teacher_is_not_refused():
    refuse_other_tokens(Teacher(path="x"), changed(), changed())
