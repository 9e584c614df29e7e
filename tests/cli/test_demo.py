"""``posttrain demo``: its two recipes, and its whole path with few steps."""

import pytest

from posttrain.cli import demo
from tests.evals.builders import prompt, result


@pytest.fixture
def short(monkeypatch):
    """The demo's plan with two steps of each kind."""
    plan = {
        "tasks": {"generator": "addition", "options": {"split": "train", "size": 8}},
        "held_out": {"generator": "addition", "options": {"split": "test"}, "limit": 3},
        "max_new_tokens": 3,
        "sft": {"steps": 2, "demonstrations_per_step": 4, "learning_rate": 1e-3},
        "grpo": {"steps": 2, "prompts_per_step": 2, "learning_rate": 1e-3},
        "lora": None,
    }
    monkeypatch.setattr(demo, "PRETRAINED", plan)
    return plan


@pytest.mark.parametrize("plan", [demo.TOY, demo.PRETRAINED], ids=["toy", "pretrained"])
def test_both_recipes_are_valid(plan, tmp_path):
    sft = demo.sft_recipe(plan, "toy", 3, str(tmp_path))
    grpo = demo.grpo_recipe(plan, "warm", 3, str(tmp_path))
    assert (("sft", "toy"), ("grpo", "warm"), {3}) == (
        (sft.algorithm.type, sft.model.path),
        (grpo.algorithm.type, grpo.model.path),
        {sft.run.seed, grpo.run.seed},
    )


@pytest.mark.parametrize("plan", [demo.TOY, demo.PRETRAINED], ids=["toy", "pretrained"])
def test_evaluations_are_on_held_out_problems(plan):
    assert ("train", "test") == (plan["tasks"]["options"]["split"], plan["held_out"]["options"]["split"])


def test_the_whole_path(posttrain, short, here):
    done = posttrain("demo", "--model", "model", "--directory", "out", "--no-check")
    words = ("untrained", "after SFT", "after GRPO", "pass@1 went from", "--resume out/demo-grpo")
    assert (0, [], True) == (
        done.code,
        [word for word in words if word not in done.out],
        (here / "out" / "demo-grpo" / "evals.jsonl").is_file(),
    )


class Run:
    """A finished part of the demo."""

    def __init__(self, directory, *evaluations):
        self.directory, self.evaluations, self.steps = directory, evaluations, ()


@pytest.mark.parametrize(
    ("warm", "final", "words"),
    [
        (1, 2, "from 25.0% to 50.0% by GRPO (2.0 times"),
        (0, 2, "from 0.0% to 50.0% by GRPO\n"),
        (2, 1, "from 50.0% to 25.0%"),
    ],
)
def test_the_report_is_true_whatever_happened(capsys, warm, final, words):
    numbers = [result(prompt("a", right), prompt("b", right)) for right in (0, warm, final)]
    demo.report(Run("sft", numbers[0], numbers[1]), Run("grpo", numbers[2]))
    assert words in capsys.readouterr().out
