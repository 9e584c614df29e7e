"""Every preference algorithm as a whole run: it trains, its layouts agree, and a resumed run has the same bits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posttrain
from posttrain.assemble import prepare
from posttrain.config import read_recipe
from posttrain.errors import ConfigError, DataError
from posttrain.launch import launch, resume
from posttrain.loops.reference import FILE, read_references
from posttrain.records.names import check_names
from posttrain.tasks.source import task_set
from tests.tiny_vision import IMAGE_TOKENS, build_vision, picture
from tests.toy_runs import build_loaded, build_recipe, length_reward, same, weights

RECIPES = Path(__file__).parents[2] / "recipes"
ALGORITHMS = {
    "dpo": {},
    "dpo, options": {
        "type": "dpo",
        "nll_coefficient": 0.2,
        "weighting": "wpo",
        "length_alpha": 0.5,
        "loss": "ipo_average",
    },
    "beta_dpo": {},
    "s_dpo": {},
    "plackett_luce": {},
    "simpo": {},
    "orpo": {},
    "cpo": {},
    "kto": {},
    "bco": {},
}
RANKED = [
    {"prompt": f"{n}+1=", "ranking": [str(n + 1), str(n), str(n + 7)], "scores": [2.0, 1.0, 1.0]} for n in range(4)
]


def run(directory, algorithm="dpo", *, tasks=None, loaded=None, check=False, **sections):
    """Train a tiny toy for three batches of four pairs."""
    usual = {
        "run": {"directory": str(directory), "steps": 3},
        "batches": {"demonstrations_per_step": 4},
        "rewards": None,
    }
    options = ALGORITHMS.get(algorithm, {})
    name = options.get("type", algorithm)
    for section, values in sections.items():
        usual[section] = {**(usual.get(section) or {}), **values} if isinstance(values, dict) else values
    recipe = build_recipe(name, **{"algorithm": {"type": name, **options}, **usual})
    return launch(recipe, loaded=loaded or build_loaded(), check=check, tasks=tasks)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_trains_three_steps_after_its_checks(algorithm, tmp_path):
    loaded = build_loaded()
    before = weights(loaded.model)
    result = run(tmp_path / "run", algorithm, loaded=loaded, check=True)
    assert [1, 2, 3] == [record.step for record in result.steps]
    assert not same(before, weights(loaded.model))
    assert {"pass", "skip"} >= {found.status for found in result.checks}
    for record in result.steps:
        check_names(record.metrics)
        assert torch.tensor(record.metrics["loss"]).isfinite()


@pytest.mark.parametrize("algorithm", ["dpo", "kto", "beta_dpo"])
def test_layout_and_microbatch_change_nothing(algorithm, tmp_path):
    ends = []
    for layout, budget in (("padded", 16384), ("shared", 16384), ("packed", 40)):
        loaded = build_loaded(dtype=torch.float64)
        batches = {"layout": layout, "tokens_per_microbatch": budget}
        run(tmp_path / f"{layout}", algorithm, loaded=loaded, batches=batches)
        ends.append(torch.cat([tensor.flatten() for tensor in weights(loaded.model).values()]))
    # The model's norms compute in float32 whatever its weights are, so another place in memory rounds otherwise.
    assert torch.allclose(ends[0], ends[1], atol=1e-6)
    assert torch.allclose(ends[0], ends[2], atol=1e-6)


@pytest.mark.parametrize("algorithm", ["dpo", "beta_dpo", "bco"])
def test_a_resumed_run_has_the_same_bits(algorithm, tmp_path):
    whole, halves = build_loaded(), build_loaded()
    run(tmp_path / "whole", algorithm, loaded=whole, run={"steps": 4})
    run(tmp_path / "halves", algorithm, loaded=halves, run={"steps": 2})
    again = build_loaded()
    resume(tmp_path / "halves", loaded=again, steps=4)
    assert same(weights(whole.model), weights(again.model))


def test_a_pairs_prompt_lies_there_once(tmp_path):
    rows = [{"prompt": "1" * 30 + "+1=", "chosen": str(n), "rejected": str(n + 5)} for n in range(4)]
    tasks = task_set(rows, data="preferences")
    padded = run(tmp_path / "padded", tasks=tasks, batches={"layout": "padded"}).steps[0].metrics["tokens/computed"]
    auto = run(tmp_path / "auto", tasks=tasks).steps[0].metrics["tokens/computed"]
    assert auto < 0.6 * padded


def test_rankings_of_three_train(tmp_path):
    """Each best answer makes two pairs, one of the eight is a token shorter, and the tied answers make none."""
    result = run(tmp_path / "run", "plackett_luce", tasks=task_set(RANKED, data="rankings"), check=True)
    assert -1 / 8 == pytest.approx(result.steps[-1].metrics["token_gap/mean"])


def test_a_precomputed_reference_gives_the_same_weights(tmp_path):
    plain, known = build_loaded(), build_loaded()
    run(tmp_path / "plain", loaded=plain)
    run(tmp_path / "known", loaded=known, batches={"precompute_reference": True})
    assert same(weights(plain.model), weights(known.model))
    assert 16 == len(read_references(tmp_path / "known" / FILE))


def test_a_resumed_run_reads_the_reference_it_began_with(tmp_path):
    whole, again = build_loaded(), build_loaded()
    options = {"precompute_reference": True}
    run(tmp_path / "whole", loaded=whole, batches=options, run={"steps": 4})
    run(tmp_path / "halves", batches=options, run={"steps": 2})
    before = (tmp_path / "halves" / FILE).read_bytes()
    resume(tmp_path / "halves", loaded=again, steps=4)
    assert before == (tmp_path / "halves" / FILE).read_bytes()
    assert same(weights(whole.model), weights(again.model))


def test_a_lost_reference_file_is_made_again(tmp_path):
    run(tmp_path / "run", batches={"precompute_reference": True}, run={"steps": 2})
    before = read_references(tmp_path / "run" / FILE)
    (tmp_path / "run" / FILE).unlink()
    resume(tmp_path / "run", loaded=build_loaded(), steps=3)
    assert before.keys() == read_references(tmp_path / "run" / FILE).keys()


def test_adapters_are_their_own_reference(tmp_path):
    loaded = build_loaded()
    result = run(tmp_path / "run", loaded=loaded, check=True, model={"path": "toy", "lora": {"rank": 2}})
    assert 0.693147 == pytest.approx(result.steps[0].metrics["loss"], abs=1e-5)
    assert 0.693147 != pytest.approx(result.steps[2].metrics["loss"], abs=1e-5)


def test_online_dpo_compares_what_it_samples(tmp_path):
    rewards = [{"type": "function", "name": "length", "function": length_reward, "inline": True}]
    loaded = build_loaded()
    recipe = build_recipe(
        "dpo",
        algorithm={"type": "dpo", "online": True},
        rewards=rewards,
        run={"directory": str(tmp_path / "run"), "steps": 2},
    )
    result = launch(recipe, loaded=loaded)
    assert 0.693147 == pytest.approx(result.steps[0].metrics["loss/preference"], abs=1e-4)
    assert result.steps[0].metrics["samples/still"] >= 4
    assert {"margin/mean", "reward/mean"} <= result.steps[1].metrics.keys()


def test_rows_in_memory_train_in_five_lines(tmp_path):
    rows = [
        {"prompt": "1+1=", "chosen": "2", "rejected": ["3", "4"]},
        {"prompt": "2+2=", "chosen": "4", "rejected": "5"},
    ]
    result = posttrain.train(
        algorithm="s_dpo",
        model={"path": "toy"},
        tasks=rows,
        directory=str(tmp_path / "run"),
        steps=1,
        demonstrations_per_step=2,
        check=False,
    )
    assert "margin/mean" in result.steps[0].metrics


@pytest.mark.parametrize(
    ("algorithm", "sections", "message"),
    [
        ("kto", {"batches": {"demonstrations_per_step": 1}}, "must be at least 2"),
        ("simpo", {"batches": {"precompute_reference": True}}, "uses no reference"),
        ("sft", {"batches": {"precompute_reference": True}}, "uses no reference"),
        ("grpo", {"batches": {"precompute_reference": True}}, "samples its rows anew"),
        ("dpo", {"algorithm": {"type": "dpo", "penalty": 5.0, "loss": "hinge"}}, "DPOP"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(algorithm, sections, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        prepare(build_recipe(algorithm, **sections))


def test_prompts_without_answers_are_refused(tmp_path):
    with pytest.raises(DataError, match="no candidates"):
        run(tmp_path / "run", tasks=task_set([{"question": "1+1="}]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy_dpo", "toy_kto"])
def test_the_recipe_learns(name, tmp_path):
    result = launch(read_recipe(RECIPES / f"{name}.toml", [f"run.directory={tmp_path / 'run'}"]))
    first, last = result.steps[:5], result.steps[-5:]
    assert mean(last, "accuracy") > 0.8 > mean(first, "accuracy")
    assert mean(last, "loss/preference") < 0.6 * mean(first, "loss/preference")
    if name == "toy_dpo":
        assert mean(last, "margin/mean") > mean(first, "margin/mean") + 1


def mean(records, name):
    return sum(record.metrics[name] for record in records) / len(records)


@pytest.fixture
def seeing():
    """A tiny vision-language model whose tokenizer knows the placeholder of a quarter of a picture."""
    tokenizer = build_loaded().tokenizer
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    place = tokenizer.convert_tokens_to_ids("<image>")
    model = build_vision(vocabulary=place + 1, image_token=place)
    return replace(build_loaded(), model=model, tokenizer=tokenizer, window=128)


@pytest.mark.parametrize("algorithm", ["mdpo", "dpo", "kto"])
def test_rows_with_pictures_train(algorithm, seeing, tmp_path):
    prompt = "<image>" * IMAGE_TOKENS + "what"
    rows = [
        {"prompt": prompt, "chosen": f"a{n}", "rejected": "no", "images": {"pixel_values": picture(n)}}
        for n in range(4)
    ]
    before = weights(seeing.model)
    tasks = task_set(rows, data="labels" if algorithm == "kto" else "preferences")
    result = run(tmp_path / "run", algorithm, tasks=tasks, loaded=seeing, check=True)
    vision = [name for name in before if "vision_tower" in name]
    after = weights(seeing.model)
    assert any(not torch.equal(before[name], after[name]) for name in vision)
    assert torch.tensor(result.steps[-1].metrics["loss"]).isfinite()
