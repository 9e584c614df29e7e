"""A demonstration, read as an answer and as a prompt."""

from posttrain.models.tiny import build_tokenizer
from posttrain.tasks.chat import Chat
from posttrain.tasks.demonstrations import asked, demonstration_group
from posttrain.types import Ending, Task

ASK = {"role": "user", "content": "1+1="}
ANSWER = {"role": "assistant", "content": "2"}
TASK = Task(id="a", messages=(ASK, ANSWER), answer="2", columns={"kind": "sum"}, source="sums")


def test_the_last_answer_is_taken_away():
    assert (ASK,) == asked(TASK).messages


def test_earlier_answers_stay():
    task = Task(id="a", messages=(ASK, ANSWER, ASK, ANSWER))
    assert (ASK, ANSWER, ASK) == asked(task).messages


def test_everything_else_is_kept():
    found = asked(TASK)
    assert ("a", "2", {"kind": "sum"}, "sums") == (found.id, found.answer, found.columns, found.source)


def test_a_prompt_stays_as_it_is():
    task = Task(id="a", messages=(ASK,))
    assert task is asked(task)


def test_a_demonstration_is_a_group_of_one_without_a_reward():
    chat = Chat(build_tokenizer())
    group = demonstration_group(TASK, 7, chat)
    (rollout,) = group.rollouts
    assert (7, "2", None, Ending.STOP) == (group.position, rollout.text, rollout.reward, rollout.ending)
    assert chat.demonstration_segments(TASK.messages) == rollout.segments
