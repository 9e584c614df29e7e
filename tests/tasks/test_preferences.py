"""Preference rows become tasks with candidates, whatever form they have, and tasks become groups."""

import json
from dataclasses import replace

import pytest

from posttrain.config import Tasks
from posttrain.errors import DataError
from posttrain.tasks.chat import Chat
from posttrain.tasks.columns import Columns
from posttrain.tasks.overlong import drop_overlong, token_count
from posttrain.tasks.preferences import SAME, candidate_group
from posttrain.tasks.source import load_tasks, task_set
from posttrain.types import Candidate, Task
from tests.toy_runs import build_loaded

ASK = {"role": "user", "content": "1+1="}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("2", "3"))
PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
MESSAGES = {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]}


def read(row, data="preferences", **columns):
    return task_set([row], columns=Columns(**columns), data=data)[0]


def answers(task):
    return [(candidate.messages[-1]["content"], candidate.reward) for candidate in task.candidates]


@pytest.fixture(scope="module")
def chat():
    loaded = build_loaded()
    return Chat(loaded.tokenizer, eos_ids=loaded.generation_eos_ids)


@pytest.mark.parametrize(
    "row",
    [
        PAIR,
        MESSAGES,
        {"question": "1+1=", "chosen": "2", "rejected": "3"},
        {"messages": [ASK], "chosen": [GOOD], "rejected": "3"},
        {"prompt": "1+1=", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": "1+1=", "chosen": [ASK, GOOD], "rejected": [ASK, BAD], "messages": [ASK, GOOD]},
    ],
    ids=["text", "messages", "question", "mixed", "whole conversations", "implicit prompt", "ultrafeedback"],
)
def test_every_form_of_a_pair_is_the_same_task(row):
    task = read(row)
    assert ((ASK,), [("2", 1.0), ("3", 0.0)]) == (task.messages, answers(task))


def test_the_implicit_prompt_is_all_that_is_shared_up_to_a_question():
    follow = {"role": "user", "content": "and 2+2="}
    task = read({"chosen": [ASK, GOOD, follow, GOOD], "rejected": [ASK, GOOD, follow, BAD]})
    assert (ASK, GOOD, follow) == task.messages


def test_answers_of_several_messages_stay_whole():
    call = {"role": "assistant", "content": "look"}
    seen = {"role": "tool", "content": "2"}
    task = read({"prompt": [ASK], "chosen": [call, seen, GOOD], "rejected": [BAD]})
    assert (call, seen, GOOD) == task.candidates[0].messages


@pytest.mark.parametrize("rejected", [["3", "4"], [[BAD], [{"role": "assistant", "content": "4"}]]])
def test_several_rejected_answers_are_several_negatives(rejected):
    assert [("2", 1.0), ("3", 0.0), ("4", 0.0)] == answers(read(PAIR | {"rejected": rejected}))


def test_own_column_names():
    settings = Columns(question="q")
    row = {"q": "1+1=", "chosen": "2", "rejected": "3"}
    assert (ASK,) == task_set([row], columns=settings, data="preferences")[0].messages


def test_the_recipe_names_its_columns(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"ask": "1+1=", "win": "2", "lose": "3", "topic": "sums"}))
    task = load_tasks(Tasks(path=str(file), question="ask", chosen="win", rejected="lose"), data="preferences")[0]
    assert ([("2", 1.0), ("3", 0.0)], {"topic": "sums"}) == (answers(task), task.columns)


def test_the_system_message_comes_first_and_is_no_part_of_the_answer():
    task = read({"prompt": "1+1=", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, system="Be brief.")
    assert ({"role": "system", "content": "Be brief."}, ASK) == task.messages
    assert (GOOD,) == task.candidates[0].messages


def test_a_ranking_gives_each_answer_its_place():
    assert [("2", 2.0), ("3", 1.0), ("9", 0.0)] == answers(
        read({"prompt": "1+1=", "ranking": ["2", "3", "9"]}, "rankings")
    )


def test_scores_order_a_ranking_and_may_tie():
    row = {"prompt": "1+1=", "ranking": ["3", "2", "9"], "scores": [0.5, 0.9, 0.5]}
    assert [("2", 0.9), ("3", 0.5), ("9", 0.5)] == answers(read(row, "rankings"))


def test_a_pair_is_a_ranking_too():
    assert answers(read(PAIR)) == answers(read(PAIR, "rankings"))


@pytest.mark.parametrize(("label", "reward"), [(True, 1.0), (False, 0.0), (1, 1.0), (0, 0.0)])
def test_a_labelled_answer(label, reward):
    assert [("2", reward)] == answers(read({"prompt": "1+1=", "completion": "2", "label": label}, "labels"))


def test_a_pair_is_two_labelled_answers():
    assert [("2", 1.0), ("3", 0.0)] == answers(read(PAIR, "labels"))


def test_a_labelled_conversation_needs_no_prompt():
    task = read({"completion": [ASK, GOOD], "label": True}, "labels")
    assert ((ASK,), (GOOD,)) == (task.messages, task.candidates[0].messages)


@pytest.mark.parametrize(
    ("row", "data", "message"),
    [
        ({"prompt": "1+1=", "chosen": "2"}, "preferences", "'chosen' and 'rejected'.*the row has: prompt, chosen"),
        ({"chosen": "2", "rejected": "3"}, "preferences", "no prompt in .*tasks.question"),
        (PAIR | {"rejected": []}, "preferences", "at least one answer"),
        (PAIR | {"chosen": " "}, "preferences", "column 'chosen'.*empty text"),
        (PAIR | {"chosen": [ASK]}, "preferences", "end with the assistant's; got role 'user'"),
        ({"prompt": "1+1=", "ranking": ["2", "3"], "scores": [1]}, "rankings", "one number for each of the 2"),
        ({"prompt": "1+1=", "ranking": ["2"], "scores": ["high"]}, "rankings", "one number for each of the 1"),
        ({"prompt": "1+1=", "completion": "2", "label": "yes"}, "labels", "expected true or false, got 'yes'"),
        ({"prompt": "1+1=", "label": True}, "labels", "no column 'completion'"),
        ({"prompt": "1+1=", "answer": "2"}, "labels", "'completion' and 'label'"),
        ({"prompt": [ASK, GOOD], "chosen": "2", "rejected": "3"}, "preferences", "nothing left to answer"),
        ("1+1=", "preferences", "expected columns by name"),
    ],
)
def test_rows_that_cannot_be_used_say_why(row, data, message):
    with pytest.raises(DataError, match=message):
        read(row, data)


def test_errors_name_file_and_line(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(PAIR) + "\n" + json.dumps({"prompt": "x"}))
    with pytest.raises(DataError, match=r"pairs.jsonl, line 2"):
        load_tasks(Tasks(path=str(file)), data="preferences")


def test_equal_answers_are_left_out_and_counted():
    tasks = task_set([PAIR, PAIR | {"rejected": "2"}], data="preferences")
    assert (1, {SAME: 1}) == (len(tasks), dict(tasks.skipped))


def test_a_data_set_of_equal_answers_is_refused():
    with pytest.raises(DataError, match=f"left out: 1 {SAME}"):
        read(PAIR | {"rejected": "2"})


def test_labels_need_no_difference():
    assert 1 == len(task_set([PAIR | {"rejected": "2"}], data="labels"))


def test_ready_tasks_need_candidates():
    bare = Task(id="a", messages=(ASK,))
    full = replace(bare, candidates=(Candidate(messages=(GOOD,), reward=1.0), Candidate(messages=(BAD,), reward=0.0)))
    assert full is task_set([full], data="preferences")[0]
    with pytest.raises(DataError, match="no candidates"):
        task_set([bare], data="preferences")


def test_the_digest_tells_answers_apart():
    digests = {task_set([row], data="preferences").digest for row in (PAIR, PAIR | {"rejected": "4"}, MESSAGES)}
    assert 2 == len(digests)


@pytest.mark.parametrize("data", ["preferences", "rankings"])
def test_a_generators_wrong_answer_is_another_problems_right_one(data):
    tasks = load_tasks(Tasks(generator="addition", options={"size": 20}), data=data)
    for task in tasks:
        (right, _), (wrong, _) = answers(task)
        assert right == task.columns["answer"]
        assert wrong != right


def test_a_generators_labels_alternate():
    tasks = load_tasks(Tasks(generator="addition", options={"size": 6}), data="labels")
    assert [1.0, 0.0] * 3 == [task.candidates[0].reward for task in tasks]
    assert [True, False] * 3 == [answers(task)[0][0] == task.columns["answer"] for task in tasks]


def test_a_group_has_one_rollout_per_answer(chat):
    group = candidate_group(read(PAIR | {"rejected": ["3", "44"]}), 7, chat)
    assert (7, (1.0, 0.0, 0.0)) == (group.position, group.rewards)
    assert [0, 1, 2] == [rollout.index for rollout in group.rollouts]
    assert ["2", "3", "44"] == [rollout.text for rollout in group.rollouts]


def test_answers_train_whole_and_share_their_prompt(chat):
    rows = [rollout.segments[0] for rollout in candidate_group(read(PAIR), 0, chat).rollouts]
    prompt = chat.prompt_ids([ASK])
    for row, text in zip(rows, ("2", "3"), strict=True):
        assert prompt == row.ids[: row.prompt_length]
        assert text == chat.decode([i for i, on in zip(row.ids, row.loss_mask, strict=True) if on])
        assert chat.end_of_turn_id == row.ids[-1]
        assert row.loss_mask[-1]


def test_assistant_messages_of_the_prompt_do_not_train(chat):
    follow = {"role": "user", "content": "2+2="}
    task = read({"prompt": [ASK, GOOD, follow], "chosen": "4", "rejected": "5"})
    (row,) = candidate_group(task, 0, chat).rollouts[0].segments
    assert chat.prompt_ids([ASK, GOOD, follow]) == row.ids[: row.prompt_length]
    assert not any(row.loss_mask[: row.prompt_length])


def test_a_pair_is_as_long_as_its_longer_answer(chat):
    task = read(PAIR | {"rejected": "3333333"})
    assert len(candidate_group(task, 0, chat).rollouts[1].segments[0].ids) == token_count(task, chat)


def test_pairs_that_do_not_fit_are_left_out(chat):
    tasks = task_set([PAIR, PAIR | {"rejected": "3" * 60}], data="preferences")
    kept = drop_overlong(tasks, chat, room=40, policy="skip")
    assert (1, 1) == (len(kept), kept.skipped["overlong"])
