"""Rows become tasks by the columns that the recipe names."""

import dataclasses
import json
from hashlib import sha256

import pyarrow
import pyarrow.parquet
import pytest

from posttrain.config import Tasks
from posttrain.errors import ConfigError, DataError
from posttrain.tasks.columns import Columns
from posttrain.tasks.source import load_tasks, task_set
from posttrain.types import Task

GSM8K = [
    {"question": "How many?", "answer": "Nine and nine are <<9+9=18>>18.\n#### 18"},
    {"question": "How far?", "answer": "Far.\n#### 1,200"},
]
PATTERN = r"####\s*(\S+)"
CHAT = [{"role": "user", "content": "hi"}]
SHOWN = [*CHAT, {"role": "assistant", "content": "hello"}]


@pytest.fixture
def gsm8k(tmp_path) -> str:
    file = tmp_path / "gsm8k.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in GSM8K), encoding="utf-8")
    return str(file)


class TestColumns:
    def test_a_question_becomes_a_user_message(self):
        assert ({"role": "user", "content": "How?"},) == task_set([{"question": "How?"}])[0].messages

    def test_a_plain_text_is_a_question(self):
        assert ({"role": "user", "content": "How?"},) == task_set(["How?"])[0].messages

    def test_messages_win_over_the_question(self):
        task = task_set([{"question": "no", "messages": CHAT}])[0]
        assert (tuple(CHAT), {"question": "no"}) == (task.messages, task.columns)

    def test_rows_without_messages_fall_back_to_the_question(self):
        rows = [{"question": "yes", "messages": None}, {"question": "no", "messages": CHAT}]
        assert ["yes", "hi"] == [task.messages[0]["content"] for task in task_set(rows)]

    def test_a_question_column_may_hold_messages(self):
        assert tuple(CHAT) == task_set([{"prompt": CHAT}], columns=Columns(question="prompt"))[0].messages

    def test_the_system_message_comes_first(self):
        task = task_set(["How?"], columns=Columns(system="Be brief."))[0]
        assert {"role": "system", "content": "Be brief."} == task.messages[0]

    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_a_system_message_of_its_own_stays(self, role):
        own = [{"role": role, "content": "Own."}, *CHAT]
        assert tuple(own) == task_set([{"messages": own}], columns=Columns(system="Be brief."))[0].messages

    def test_other_columns_are_handed_on(self):
        task = task_set([{"question": "q", "answer": "a", "id": "x", "level": 3, "tags": ["b"]}])[0]
        assert {"level": 3, "tags": ["b"]} == task.columns

    def test_no_answer_is_fine(self):
        assert task_set(["q"])[0].answer is None

    @pytest.mark.parametrize(
        ("value", "text"), [(18, "18"), (1.5, "1.5"), ("18", "18"), (["a", 1], '["a", 1]'), (True, "true")]
    )
    def test_answers_are_texts(self, value, text):
        assert text == task_set([{"question": "q", "answer": value}])[0].answer

    def test_the_pattern_picks_the_answer(self):
        tasks = task_set(GSM8K, columns=Columns(answer_pattern=PATTERN))
        assert ["18", "1,200"] == [task.answer for task in tasks]

    def test_an_answer_without_the_pattern(self):
        rows = [*GSM8K, {"question": "q", "answer": "no marks"}]
        with pytest.raises(DataError, match=r"row 3: column 'answer' has nothing that matches .* ends with 'no marks'"):
            task_set(rows, columns=Columns(answer_pattern=PATTERN))

    def test_a_pattern_that_is_no_expression(self):
        with pytest.raises(ConfigError, match="is no regular expression"):
            Columns(answer_pattern="(")

    def test_a_pattern_without_a_group(self):
        with pytest.raises(ConfigError, match="needs a group in parentheses"):
            Columns(answer_pattern="####")

    def test_a_missing_column_lists_those_present(self):
        with pytest.raises(DataError, match=r"row 1: no column 'messages' or 'question'; the row has: prompt, level. "):
            task_set([{"prompt": "q", "level": 1}])

    def test_a_missing_column_suggests_the_nearest(self):
        with pytest.raises(DataError, match=r"Did you mean 'questions'\? Name the column with tasks.messages"):
            task_set([{"questions": "q"}])

    def test_a_named_answer_column_must_be_there(self):
        with pytest.raises(DataError, match=r"no column 'solution'; .*tasks.answer"):
            task_set([{"question": "q", "answer": "a"}], columns=Columns(answer="solution"))

    @pytest.mark.parametrize("value", ["", "  \n"])
    def test_an_empty_question(self, value):
        with pytest.raises(DataError, match="column 'question' is empty"):
            task_set([{"question": value}])

    def test_a_row_that_is_neither(self):
        with pytest.raises(DataError, match="row 2: expected columns by name, or a question; got int"):
            task_set(["q", 3])


class TestMessages:
    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ("text", "expected a list of messages with role and content; got str"),
            ([], "expected at least one message"),
            (["text"], "message 0: expected an object with role and content; got str"),
            ([{"from": "human", "value": "hi"}], "expected the keys role and content; got from, value"),
            ([{"role": "usr", "content": "hi"}], r"unknown role 'usr'. Did you mean 'user'\?"),
            ([*CHAT, {"role": "user"}], r"message 1 \(user\): expected content as text or parts; got None"),
            ([{"role": "user", "content": 3}], "expected content as text or parts; got 3"),
        ],
    )
    def test_what_is_wrong_is_named(self, value, problem):
        with pytest.raises(DataError, match=f"memory, row 1, column 'messages'.*{problem}"):
            task_set([{"messages": value}])

    def test_keys_without_a_value_are_dropped(self):
        message = {"role": "user", "content": "hi", "tool_calls": None, "name": None}
        assert ({"role": "user", "content": "hi"},) == task_set([{"messages": [message]}])[0].messages

    def test_a_tool_call_needs_no_text(self):
        calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
        talk = [*CHAT, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": "4"}]
        assert {"role": "assistant", "content": "", "tool_calls": calls} == task_set([{"messages": talk}])[0].messages[
            1
        ]


class TestImitation:
    def test_the_answer_column_is_imitated_whole(self):
        task = task_set(GSM8K, columns=Columns(answer_pattern=PATTERN), for_imitation=True)[0]
        assert ({"role": "assistant", "content": GSM8K[0]["answer"]}, "18") == (task.messages[-1], task.answer)

    def test_the_demonstration_column_is_imitated(self):
        rows = [{"question": "q", "answer": "a", "worked": "so a"}]
        task = task_set(rows, columns=Columns(demonstration="worked"), for_imitation=True)[0]
        assert ("so a", "a", {}) == (task.messages[-1]["content"], task.answer, task.columns)

    def test_messages_that_end_with_the_assistant_are_demonstrations(self):
        assert tuple(SHOWN) == task_set([{"messages": SHOWN}], for_imitation=True)[0].messages

    def test_nothing_to_imitate(self):
        with pytest.raises(DataError, match=r"row 1: no column 'answer'; .*tasks.demonstration"):
            task_set(["q"], for_imitation=True)

    def test_an_empty_demonstration(self):
        with pytest.raises(DataError, match="column 'answer' is empty; expected the text to imitate"):
            task_set([{"question": "q", "answer": " "}], for_imitation=True)

    def test_a_prompt_may_not_end_with_the_assistant(self):
        with pytest.raises(DataError, match=r"row 1: the messages end with an assistant message.*algorithm sft"):
            task_set([{"messages": SHOWN}])


class TestTaskSet:
    def test_is_a_sequence(self):
        tasks = task_set(["a", "b", "c"], name="three")
        assert (3, "1", "three", ["0", "1", "2"]) == (len(tasks), tasks[1].id, tasks.name, [task.id for task in tasks])

    def test_slices(self):
        assert ["0", "1"] == [task.id for task in task_set(["a", "b", "c"])[:2]]

    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            task_set(["a"]).name = "b"

    def test_nothing_was_skipped(self):
        assert {} == dict(task_set(["a"]).skipped)

    def test_no_tasks(self):
        with pytest.raises(DataError, match="memory: no tasks"):
            task_set([])

    def test_one_row_instead_of_a_list(self):
        with pytest.raises(DataError, match="expected a list of rows or questions; got one str"):
            task_set("question")

    def test_limit_stops_reading(self):
        def rows():
            yield "a"
            raise AssertionError("read on")

        assert 1 == len(task_set(rows(), limit=1))

    def test_ids_of_the_rows_are_kept(self):
        assert ["x", "7"] == [t.id for t in task_set([{"question": "q", "id": "x"}, {"question": "q", "id": 7}])]

    def test_repeated_ids_are_told_apart_in_order(self):
        rows = [{"question": "q", "id": name} for name in ("x", "x#2", "x", "x")]
        assert ["x", "x#2", "x#3", "x#4"] == [task.id for task in task_set(rows)]

    def test_ready_tasks_pass_through(self):
        task = Task(id="t", messages=tuple(CHAT), answer="a", columns={"n": 1}, source="mine")
        assert task is task_set([task])[0]

    def test_a_repeated_ready_task_keeps_the_rest(self):
        task = Task(id="t", messages=tuple(CHAT), answer="a", columns={"n": 1}, source="mine")
        assert dataclasses.replace(task, id="t#2") == task_set([task, task])[1]

    @pytest.mark.parametrize(("messages", "imitation"), [(SHOWN, False), (CHAT, True), ([], False)])
    def test_ready_tasks_must_suit_the_run(self, messages, imitation):
        with pytest.raises(DataError, match="row 1: task 't'"):
            task_set([Task(id="t", messages=tuple(messages))], for_imitation=imitation)


class TestDigest:
    def test_is_stable(self):
        rows = ['["0", [{"content": "a", "role": "user"}], "4"]', '["1", [{"content": "é", "role": "user"}], null]']
        expected = sha256("".join(row + "\n" for row in rows).encode()).hexdigest()
        assert expected == task_set([{"question": "a", "answer": 4}, "é"]).digest

    def test_depends_on_order_answers_and_texts(self):
        sets = [["a", "b"], ["b", "a"], [{"question": "a", "answer": "1"}, "b"], ["a"]]
        assert 4 == len({task_set(rows).digest for rows in sets})

    def test_does_not_depend_on_the_name(self):
        assert task_set(["a"], name="one").digest == task_set(["a"], name="two").digest


class TestLoad:
    def test_json_lines(self, gsm8k):
        tasks = load_tasks(Tasks(path=gsm8k, answer_pattern=PATTERN, system="Think."))
        assert ("gsm8k.jsonl", "18", "Think.") == (tasks.name, tasks[0].answer, tasks[0].messages[0]["content"])

    def test_tasks_know_their_source(self, gsm8k):
        assert "gsm8k.jsonl" == load_tasks(Tasks(path=gsm8k))[0].source

    def test_demonstrations(self, gsm8k):
        tasks = load_tasks(Tasks(path=gsm8k), for_imitation=True)
        assert ["user", "assistant"] == [message["role"] for message in tasks[0].messages]

    def test_all_column_names_are_read(self, tmp_path):
        file = tmp_path / "a.jsonl"
        row = {"talk": None, "ask": "q", "gold": "= 4", "show": "two and two are four"}
        file.write_text(json.dumps(row), encoding="utf-8")
        settings = Tasks(
            path=str(file),
            messages="talk",
            question="ask",
            answer="gold",
            answer_pattern=r"= (\d)",
            demonstration="show",
        )
        task = load_tasks(settings, for_imitation=True)[0]
        assert (["q", "two and two are four"], "4") == ([message["content"] for message in task.messages], task.answer)

    def test_limit(self, gsm8k):
        assert 1 == len(load_tasks(Tasks(path=gsm8k, limit=1)))

    def test_parquet_with_messages(self, tmp_path):
        talk = [*CHAT, {"role": "user", "content": "again", "name": "me"}]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": talk}]), tmp_path / "a.parquet")
        assert tuple(talk) == load_tasks(Tasks(path=str(tmp_path / "a.parquet")))[0].messages

    def test_an_error_names_file_line_and_column(self, gsm8k):
        with pytest.raises(DataError, match=r"gsm8k.jsonl, line 1: no column 'messages' or 'prompt'"):
            load_tasks(Tasks(path=gsm8k, question="prompt"))

    def test_an_empty_file(self, tmp_path):
        (tmp_path / "a.jsonl").write_text("\n\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"a.jsonl: no tasks"):
            load_tasks(Tasks(path=str(tmp_path / "a.jsonl")))

    def test_a_generator(self):
        tasks = load_tasks(Tasks(generator="addition", options={"size": 5}))
        assert (5, "addition", {"generator": "addition"}) == (len(tasks), tasks.name, tasks[0].columns)

    def test_a_generators_answer_is_what_to_imitate(self):
        task = load_tasks(Tasks(generator="sort", options={"size": 1}), for_imitation=True)[0]
        assert task.answer == task.messages[-1]["content"]

    def test_the_recipes_split_reaches_a_generator(self):
        train, test = (load_tasks(Tasks(generator="addition", split=split)) for split in ("train", "test"))
        assert not {t.messages[0]["content"] for t in train} & {t.messages[0]["content"] for t in test}

    def test_the_seed_reaches_a_generator(self):
        digests = {load_tasks(Tasks(generator="sort", options={"size": 9}), seed=seed).digest for seed in (0, 1)}
        assert 2 == len(digests)
