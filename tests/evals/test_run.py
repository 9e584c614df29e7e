"""A whole evaluation with an engine that says what it is told: numbers, seeds, failures, refusals."""

import asyncio
from dataclasses import replace

import pytest

from posttrain.errors import ConfigError, RewardError
from posttrain.evals.fingerprint import differences
from posttrain.evals.run import evaluate, evaluation_seed
from posttrain.evals.summary import Right
from posttrain.protocols import EnvStep
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.tasks.order import rollout_seed
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Completion, Ending, Outcome, Sampling, Score, Task

TASKS = TaskSet(
    tasks=tuple(
        Task(id=name, messages=({"role": "user", "content": name},), answer=name) for name in ("1", "2", "3", "4")
    ),
    name="four digits",
)


class DigitChat:
    """Token id = digit; the end token is 10."""

    template_hash = "c" * 64

    def prompt_ids(self, messages):
        return (int(messages[0]["content"]),)

    def decode(self, ids):
        return "".join(str(i) for i in ids if i < 10)

    def bridge(self, ids, reply):
        return None


class Copier:
    """Copies the prompt's digit on the samples with an index below the digit, and says 0 on the others."""

    version, window = 0, 32

    def __init__(self):
        self.seeds = []
        self.counts = {}

    async def generate(self, prompt_ids, sampling, *, seed):
        self.seeds.append(seed)
        digit = prompt_ids[0]
        index = self.counts[digit] = self.counts.get(digit, -1) + 1
        ids = (digit if index < digit else 0, 10)[: sampling.max_new_tokens]
        ending = Ending.STOP if ids[-1] == 10 else Ending.LENGTH
        return Completion(ids=ids, rollout_logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), ending=ending)

    async def load(self, tensors, version):
        raise AssertionError("an evaluation loads no weights")


class Single:
    """One question, one answer."""

    async def reset(self, task):
        return task.messages

    async def step(self, message):
        return EnvStep(terminated=True)

    async def close(self):
        pass


class Equal:
    """Compares the text with the answer; a task in ``broken`` fails."""

    name = "equal"

    def __init__(self, broken=()):
        self.broken = broken

    async def score(self, rollouts, task):
        if task.id in self.broken:
            raise OSError("judge unreachable")
        return [
            Score(name=self.name, value=float(r.text == task.answer), outcome=Outcome.SCORED, detail=r.text)
            for r in rollouts
        ]


def run(tasks=TASKS, *, reward=None, engine=None, samples=4, **options):
    rubric = Rubric([Part(reward=reward or Equal(), name="equal", attempts=1)])
    defaults = {"sampling": Sampling(max_new_tokens=2), "seed": 7, "ks": (1, 4), "make_env": Single}
    return asyncio.run(
        evaluate(
            tasks,
            engine=engine or Copier(),
            chat=DigitChat(),
            rubric=rubric,
            samples=samples,
            **defaults | options,
        )
    )


def test_the_numbers_are_those_of_the_samples():
    found = run()
    assert [1, 2, 3, 4] == [prompt.right for prompt in found.prompts]


def test_pass_at_one_and_at_four():
    found = run()
    assert (0.625, 1.0) == (found.pass_at[1].mean, found.pass_at[4].mean)


def test_the_majority_counts_answers_as_the_verifier_read_them():
    assert (0 + 0.5 + 1 + 1) / 4 == run().majority.mean


def test_a_verifier_that_reads_no_answer_has_no_majority():
    class Silent(Equal):
        async def score(self, rollouts, task):
            return [replace(score, detail="") for score in await super().score(rollouts, task)]

    assert run(reward=Silent()).majority is None


def test_completions_at_the_token_limit_are_truncated():
    found = run(sampling=Sampling(max_new_tokens=1))
    assert (1.0, 1.0) == (found.truncated_share, found.mean_length)


def test_lengths_count_the_stop_token():
    assert 2.0 == run().mean_length


def test_prompts_come_in_task_order():
    assert ["1", "2", "3", "4"] == [prompt.id for prompt in run().prompts]


def test_every_sample_has_its_own_seed():
    engine = Copier()
    run(engine=engine)
    assert 16 == len(set(engine.seeds))


def test_the_same_seed_gives_the_same_draws_and_another_seed_others():
    engines = [Copier(), Copier(), Copier()]
    for engine, seed in zip(engines, (7, 7, 8), strict=True):
        run(engine=engine, seed=seed)
    same, again, other = ([*engine.seeds] for engine in engines)
    assert (True, set()) == (same == again, set(same) & set(other))


def test_an_evaluation_never_reuses_a_training_seed():
    seeds = {evaluation_seed(7, place, index) for place in range(50) for index in range(4)}
    assert set() == seeds & {rollout_seed(7, place, index) for place in range(50) for index in range(4)}


def test_failures_are_counted_and_not_scored():
    found = run(reward=Equal(broken=("4",)))
    assert (4, 1, 0.5) == (found.failed, found.unscored, found.average.mean)


def test_the_reason_of_failures_is_among_the_warnings():
    warnings = run(reward=Equal(broken=("4",))).warnings
    assert any("4 x equal" in line and "judge unreachable" in line for line in warnings)


def test_an_evaluation_in_which_everything_failed_is_an_error():
    with pytest.raises(RewardError, match=r"nothing to report\n  16 x equal.*judge unreachable"):
        run(reward=Equal(broken=("1", "2", "3", "4")))


def test_progress_counts_up_to_the_total():
    seen = []
    run(progress=lambda done, total: seen.append((done, total)))
    assert [(i, 16) for i in range(1, 17)] == seen


def test_the_result_carries_step_and_label():
    found = run(step=3, label="run a")
    assert (3, "run a") == (found.step, found.label)


def test_the_fingerprint_tells_protocols_apart():
    longer = run(sampling=Sampling(max_new_tokens=3)).fingerprint
    assert ["token limit (max_new_tokens) differs: 2 and 3"] == differences(run().fingerprint, longer)


def test_fewer_tasks_are_another_protocol():
    fewer = run(TaskSet(tasks=TASKS.tasks[:2], name="two"), samples=4).fingerprint
    assert 2 == len(differences(run().fingerprint, fewer))


def test_another_rule_is_another_protocol():
    assert run().fingerprint.verifier != run(right=Right(threshold=0.5)).fingerprint.verifier


def test_a_k_above_the_samples_is_refused_before_anything_is_sampled():
    engine = Copier()
    with pytest.raises(ConfigError, match="k = \\[8\\] cannot be estimated from 4 samples"):
        run(engine=engine, ks=(1, 8))
    assert [] == engine.seeds


def test_a_deciding_part_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="'exact' that says what is right is none of the reward parts"):
        run(right=Right(part="exact"))
