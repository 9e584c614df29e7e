"""Prompts that leave no room are skipped and counted, or refused by name."""

import pytest

from posttrain.errors import DataError
from posttrain.tasks.chat import Chat
from posttrain.tasks.overlong import drop_overlong, token_count
from posttrain.tasks.source import task_set
from tests.tasks.chat_templates import build_tokenizer


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(build_tokenizer())


@pytest.fixture
def tasks():
    return task_set(["hi", "hello " * 50, "there"])


def room(chat: Chat, tasks) -> int:
    return len(chat.prompt_ids(tasks[2].messages))


def test_skip_leaves_out_and_counts(chat, tasks):
    kept = drop_overlong(tasks, chat, room=room(chat, tasks), policy="skip")
    assert (["0", "2"], {"overlong": 1}) == ([task.id for task in kept], dict(kept.skipped))


def test_a_prompt_that_just_fits_stays(chat, tasks):
    exact = len(chat.prompt_ids(tasks[1].messages))
    assert 3 == len(drop_overlong(tasks, chat, room=exact, policy="refuse"))


def test_one_token_less_is_too_little(chat, tasks):
    exact = len(chat.prompt_ids(tasks[1].messages))
    assert 2 == len(drop_overlong(tasks, chat, room=exact - 1, policy="skip"))


def test_nothing_left_out_gives_the_same_set(chat, tasks):
    assert drop_overlong(tasks, chat, room=10_000, policy="skip") is tasks


def test_skipping_twice_adds_up(chat, tasks):
    once = drop_overlong(tasks, chat, room=room(chat, tasks), policy="skip")
    twice = drop_overlong(once, chat, room=len(chat.prompt_ids(tasks[0].messages)), policy="skip")
    assert {"overlong": 3 - len(twice)} == dict(twice.skipped)


def test_the_digest_is_of_what_is_left(chat, tasks):
    kept = drop_overlong(tasks, chat, room=room(chat, tasks), policy="skip")
    assert tasks.digest != kept.digest


def test_refuse_names_the_first(chat, tasks):
    with pytest.raises(DataError, match=r"task '1' has \d+ tokens, room is \d+"):
        drop_overlong(tasks, chat, room=room(chat, tasks), policy="refuse")


def test_nothing_left_is_an_error(chat, tasks):
    with pytest.raises(DataError, match="all 3 tasks are longer than the 3 tokens"):
        drop_overlong(tasks, chat, room=3, policy="skip")


@pytest.mark.parametrize("none", [0, -5])
def test_no_room_at_all(chat, tasks, none):
    with pytest.raises(DataError, match="no room for a prompt"):
        drop_overlong(tasks, chat, room=none, policy="skip")


def test_a_demonstration_counts_whole(chat):
    tasks = task_set([{"question": "hi", "answer": "hello"}], for_imitation=True)
    assert len(chat.encode_demonstration(tasks[0].messages).ids) == token_count(tasks[0], chat)
