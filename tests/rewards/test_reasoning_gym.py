"""The extra's own verifiers: full marks only, and no answer is ever run as code."""

import pytest

from posttrain.errors import ConfigError
from posttrain.rewards.reasoning_gym import Config, ReasoningGym, is_arithmetic
from posttrain.types import Outcome
from tests.rewards.rollouts import score_one

reasoning_gym = pytest.importorskip("reasoning_gym")


def read(name, text, *, item=None, **options):
    item = item or reasoning_gym.create_dataset(name, seed=1, size=1)[0]
    reward = ReasoningGym(Config(**options))
    return score_one(
        reward,
        text(item) if callable(text) else text,
        item["answer"],
        metadata=item["metadata"],
        question=item["question"],
    )


def tagged(item):
    return f"thought <answer>{item['answer']}</answer>"


@pytest.mark.parametrize("name", ["chain_sum", "leg_counting", "gsm_symbolic", "knights_knaves"])
def test_reference_answer_is_right(name):
    assert 1.0 == read(name, tagged).value


def test_wrong_answer_is_wrong():
    assert 0.0 == read("chain_sum", "<answer>x</answer>").value


def test_listing_candidates_does_not_pay():
    """The verifier's raw score pays for text that contains the answer."""
    assert 0.0 == read("leg_counting", lambda item: f"<answer>{item['answer']} 1</answer>").value


def test_raw_score_on_demand():
    score = read("leg_counting", lambda item: f"<answer>{item['answer']} 1</answer>", threshold=0)
    assert 0.0 < score.value < 1.0


def test_missing_tag_is_unparsable():
    assert Outcome.UNPARSABLE is read("chain_sum", lambda item: item["answer"]).outcome


def test_whole_completion_as_answer():
    assert 1.0 == read("chain_sum", lambda item: item["answer"], tag=None).value


@pytest.mark.parametrize("name", ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens"])
def test_verifiers_that_run_the_answer_are_refused(name):
    with pytest.raises(ConfigError, match=rf"'{name}' runs the model's answer as Python code"):
        ReasoningGym(Config(task=name))


def test_refused_by_metadata_too():
    with pytest.raises(ConfigError, match="runs the model's answer"):
        read("", "<answer>1</answer>", item={"question": "", "answer": "1", "metadata": {"source_dataset": "n_queens"}})


def test_unknown_task_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'chain_sum'"):
        ReasoningGym(Config(task="chain_sun"))


def test_task_without_metadata_says_what_to_set():
    with pytest.raises(ConfigError, match=r"no metadata\.source_dataset column"):
        score_one(ReasoningGym(Config()), "<answer>1</answer>")


def test_countdown_accepts_arithmetic():
    item = reasoning_gym.create_dataset("countdown", seed=1, size=1)[0]
    expression = item["metadata"]["expression"]
    assert 1.0 == read("countdown", f"<answer>{expression}</answer>", item=item).value


def test_countdown_never_evaluates_code(tmp_path):
    target = tmp_path / "owned"
    attack = f"<answer>__import__('pathlib').Path('{target}').touch()</answer>"
    assert (Outcome.UNPARSABLE, False) == (read("countdown", attack).outcome, target.exists())


@pytest.mark.parametrize(
    "text",
    ["3*x**2*y**3 - 4*x", "(1+2)*3/4", "sin(x)**2 + C", "x**(3/2)", "-x^2/2", "exp(2*x)", "1.5*x", ""],
)
def test_plain_arithmetic(text):
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "().__class__",
        "exit()",
        "open(x)",
        "x.real",
        "(1).real",
        "1 . real",
        "9**9**9",
        "9**(9**9)",
        "9**999",
        "((((9**9)**9)**9)**9)**9",
        "lambda x: x",
        "[x]",
        "x; y",
        "x" * 501,
        "e\u0301",
        "१",
    ],
)
def test_not_plain_arithmetic(text):
    assert not is_arithmetic(text)
