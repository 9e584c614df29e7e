"""Teachers: who teaches what, their log-probabilities, and divergences equal to dense ones in value and gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.batches.pack import pack
from posttrain.config import Teacher as Section
from posttrain.errors import ConfigError, DataError
from posttrain.functional import distill
from posttrain.learners.local import Config, LocalLearner
from posttrain.models.teacher import Teachers, responsible
from posttrain.types import Loss, Needs, Task
from tests.models.samples import gradients, largest_difference, plain_logprobs, ragged_groups, widen_norms
from tests.tiny_models import build_tiny

SUMS = Task(id="1", messages=(), source="sums", columns={"kind": "easy"})
SORTS = Task(id="2", messages=(), source="sorts", columns={"kind": "hard"})


def section(name="teacher", **options):
    return Section(path="x", name=name, **options)


def model(seed=0, dtype=torch.float64, **overrides):
    return (
        widen_norms(build_tiny(seed=seed, dtype=dtype, **overrides))
        if dtype == torch.float64
        else build_tiny(seed=seed)
    )


def learner(student, teachers, divergence=distill.reverse_kl, **settings):
    needs = Needs(divergence=divergence, streams={"distillation": "token-mean"})
    return LocalLearner(Config(**settings), student, 1.0, 10, needs, teachers=teachers)


def total(batch, logprobs, entropy, values):
    """The weighted sum of divergences."""
    return Loss(total=(batch.token_weight["policy"] * batch.divergence).sum())


def train(one, samples, layout="padded", budget=10_000):
    """Loss and gradients of a batch in one layout."""
    losses = []

    def call(*arguments):
        losses.append(total(*arguments))
        return losses[-1]

    for microbatch in pack(samples, token_budget=budget, layout=layout):
        one.forward_backward(microbatch, call)
    return sum(float(loss.total.detach()) for loss in losses), gradients(one.model)


def dense(student, teacher, samples, divergence, temperature=1.0):
    """The same from whole logits, row by row."""
    result = 0.0
    for one in samples:
        places = np.flatnonzero(one.loss_mask)
        if len(places):
            ids = torch.tensor(one.ids)[None]
            with torch.no_grad():
                target = teacher(input_ids=ids, use_cache=False).logits[0, places - 1]
            own = student(input_ids=ids, use_cache=False).logits[0, places - 1]
            weight = torch.tensor(one.token_weight["policy"][places])
            result = result + (weight * divergence(own / temperature, target / temperature)).sum()
    result.backward()
    return float(result.detach()), gradients(student)


def jsd(student, teacher):
    return distill.jsd(student, teacher, beta=0.3)


class TestResponsible:
    def test_one_teacher_takes_everything(self):
        assert ((0, 1.0),) == responsible([section()], None)

    @pytest.mark.parametrize(("task", "index"), [(SUMS, 0), (SORTS, 1)])
    def test_tasks_go_by_their_source(self, task, index):
        routes = [section("a", values=("sums",)), section("b", values=("sorts",))]
        assert ((index, 1.0),) == responsible(routes, task)

    @pytest.mark.parametrize(("task", "index"), [(SUMS, 1), (SORTS, 0)])
    def test_tasks_go_by_a_column(self, task, index):
        routes = [section("a", column="kind", values=("hard",)), section("b", column="kind", values=("easy", "soft"))]
        assert ((index, 1.0),) == responsible(routes, task)

    def test_a_task_of_nobody_is_refused(self):
        with pytest.raises(DataError, match=r"no teacher is responsible for task '2' .*a: source in \['sums'\]"):
            responsible([section("a", values=("sums",))], SORTS)

    def test_a_sample_without_a_task_is_refused_where_tasks_are_routed(self):
        with pytest.raises(DataError, match="a sample without a task"):
            responsible([section("a", values=("sums",))], None)

    def test_two_teachers_of_one_task_are_refused_with_the_reason(self):
        with pytest.raises(ConfigError, match=r"\['a', 'b'\] .*geometric mean, a blur .*mix = true"):
            responsible([section("a"), section("b", mix=True)], SUMS)

    def test_mixed_teachers_share_by_weight(self):
        assert ((0, 0.75), (1, 0.25)) == responsible([section("a", mix=True, weight=3), section("b", mix=True)], SUMS)


class TestLogprobs:
    @pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
    def test_they_are_the_models_own(self, layout):
        teacher, samples = model(seed=3), ragged_groups()
        for microbatch in pack(samples, token_budget=90, layout=layout):
            expected = torch.cat(plain_logprobs(teacher, microbatch.samples)).detach().numpy()
            assert expected == pytest.approx(Teachers([section()], [teacher]).logprobs(microbatch), abs=1e-9)

    def test_each_row_is_scored_by_its_own_teacher(self):
        samples = [replace(s, task=(SUMS, SORTS)[s.group % 2]) for s in ragged_groups()]
        models = [model(seed=3), model(seed=4)]
        teachers = Teachers([section("a", values=("sums",)), section("b", values=("sorts",))], models)
        (microbatch,) = pack(samples, token_budget=10_000, layout="packed")
        expected = [plain_logprobs(models[s.group % 2], [s])[0] for s in microbatch.samples]
        assert torch.cat(expected).detach().numpy() == pytest.approx(teachers.logprobs(microbatch), abs=1e-9)

    def test_mixed_teachers_give_their_weighted_sum(self):
        models, samples = [model(seed=3), model(seed=4)], ragged_groups()
        teachers = Teachers([section("a", mix=True, weight=3), section("b", mix=True)], models)
        (microbatch,) = pack(samples, token_budget=10_000, layout="padded")
        first, second = (torch.cat(plain_logprobs(m, microbatch.samples)).detach().numpy() for m in models)
        assert 0.75 * first + 0.25 * second == pytest.approx(teachers.logprobs(microbatch), abs=1e-9)

    def test_the_sampling_temperature_divides_their_logits(self):
        teacher, samples = model(seed=3), ragged_groups()[:1]
        (microbatch,) = pack(samples, token_budget=10_000, layout="padded")
        logits = teacher(input_ids=torch.tensor(samples[0].ids)[None], use_cache=False).logits[0]
        places = np.flatnonzero(samples[0].loss_mask)
        expected = torch.log_softmax(logits / 0.7, -1)[places - 1, samples[0].ids[places]].detach().numpy()
        actual = Teachers([section()], [teacher], temperature=0.7).logprobs(microbatch)
        assert expected == pytest.approx(actual, abs=1e-9)

    def test_samples_are_sorted_by_teacher(self):
        samples = [replace(s, task=(SUMS, SORTS)[s.group % 2]) for s in ragged_groups()]
        teachers = Teachers(
            [section("a", values=("sums",)), section("b", values=("sorts",))], [model(seed=3), model(seed=4)]
        )
        assert [{"sums"}, {"sorts"}] == [{s.task.source for s in part} for part in teachers.by_teacher(samples)]

    def test_teachers_are_frozen(self):
        teacher = model(seed=3).train()
        Teachers([section()], [teacher])
        assert not teacher.training
        assert not any(parameter.requires_grad for parameter in teacher.parameters())


class TestDivergence:
    @pytest.mark.parametrize("divergence", [distill.reverse_kl, distill.forward_kl, jsd])
    def test_it_is_the_dense_one_in_value_and_gradient(self, divergence):
        student, teacher, samples = model(), model(seed=3), ragged_groups()
        expected, slope = dense(student, teacher, samples, divergence)
        actual, mine = train(learner(student, Teachers([section()], [teacher]), divergence), samples)
        assert expected == pytest.approx(actual, abs=1e-9)
        assert largest_difference(mine, slope) < 1e-9

    def test_it_is_the_dense_one_in_float32(self):
        student, teacher, samples = model(dtype=torch.float32), model(3, torch.float32), ragged_groups()
        expected, slope = dense(student, teacher, samples, distill.reverse_kl)
        actual, mine = train(learner(student, Teachers([section()], [teacher])), samples)
        assert expected == pytest.approx(actual, rel=1e-5)
        assert largest_difference(mine, slope) < 1e-4

    @pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
    @pytest.mark.parametrize("budget", [60, 10_000])
    def test_neither_layout_nor_microbatches_change_it(self, layout, budget):
        student, samples = model(), ragged_groups()
        one = learner(student, Teachers([section()], [model(seed=3)]))
        expected, slope = train(one, samples)
        actual, mine = train(one, samples, layout, budget)
        assert expected == pytest.approx(actual, abs=1e-9)
        assert largest_difference(mine, slope) < 1e-9

    def test_the_size_of_a_tile_changes_nothing(self):
        student, samples = model(), ragged_groups()
        results = []
        for tile_bytes in (1, 8 * 61 * 5, 1 << 20):
            results.append(
                train(learner(student, Teachers([section()], [model(seed=3)], tile_bytes=tile_bytes)), samples)
            )
        assert results[0][0] == pytest.approx(results[1][0], abs=1e-12) == pytest.approx(results[2][0], abs=1e-12)
        assert largest_difference(results[0][1], results[2][1]) < 1e-9

    def test_no_more_than_a_tile_of_logits_exists_at_once(self):
        seen = []

        def watched(student, teacher):
            seen.append((len(student), len(teacher)))
            return distill.reverse_kl(student, teacher)

        train(learner(model(), Teachers([section()], [model(seed=3)], tile_bytes=8 * 61 * 5), watched), ragged_groups())
        assert {(5, 5)} <= set(seen)
        assert 5 == max(max(pair) for pair in seen)

    def test_each_row_has_its_own_teacher(self):
        student, models = model(), [model(seed=3), model(seed=4)]
        samples = [replace(s, task=(SUMS, SORTS)[s.group % 2]) for s in ragged_groups()]
        routes = [section("a", values=("sums",)), section("b", values=("sorts",))]
        actual, mine = train(learner(student, Teachers(routes, models)), samples)
        parts = [
            dense(student, models[i], [s for s in samples if s.group % 2 == i], distill.reverse_kl) for i in (0, 1)
        ]
        assert sum(value for value, _ in parts) == pytest.approx(actual, abs=1e-9)
        assert largest_difference(mine, {n: parts[0][1][n] + parts[1][1][n] for n in mine}) < 1e-9

    def test_mixed_teachers_amount_to_their_geometric_mixture(self):
        student, models, samples = model(), [model(seed=3), model(seed=4)], ragged_groups()
        teachers = Teachers([section("a", mix=True), section("b", mix=True)], models)
        _, mine = train(learner(student, teachers), samples)
        parts = [dense(student, one, samples, distill.reverse_kl)[1] for one in models]
        assert largest_difference(mine, {n: (parts[0][n] + parts[1][n]) / 2 for n in mine}) < 1e-9

    def test_a_smaller_teacher_of_another_width_teaches(self):
        student, teacher, samples = model(), model(seed=3, hidden_size=16, num_attention_heads=2), ragged_groups()
        expected, _ = dense(student, teacher, samples, distill.reverse_kl)
        assert expected == pytest.approx(
            train(learner(student, Teachers([section()], [teacher])), samples)[0], abs=1e-9
        )

    def test_padding_rows_of_one_embedding_are_left_out(self):
        student, teacher, samples = model(), model(seed=3, vocab_size=64), ragged_groups()

        def cut(own, other):
            return distill.reverse_kl(own, other[:, :61])

        expected, slope = dense(student, teacher, samples, cut)
        actual, mine = train(learner(student, Teachers([section()], [teacher])), samples)
        assert expected == pytest.approx(actual, abs=1e-9)
        assert largest_difference(mine, slope) < 1e-9

    @pytest.mark.parametrize("family", ["gemma2", "granite"])
    def test_scaled_and_capped_logits_are_the_models_own(self, family):
        student = model(family=family)
        teacher, samples = model(seed=3, family=family), ragged_groups()
        expected, slope = dense(student, teacher, samples, distill.reverse_kl)
        actual, mine = train(learner(student, Teachers([section()], [teacher])), samples)
        assert expected == pytest.approx(actual, abs=1e-9)
        assert largest_difference(mine, slope) < 1e-6

    def test_samples_that_train_nothing_cost_nothing(self):
        samples = [s for s in ragged_groups() if not s.loss_mask.any()]
        value, slope = train(learner(model(), Teachers([section()], [model(seed=3)])), samples)
        assert (0.0, {}) == (value, {name: g for name, g in slope.items() if g.abs().max() > 0})

    def test_a_learner_without_a_teacher_is_refused(self):
        with pytest.raises(ConfigError, match="needs a divergence from a teacher, and the learner was given none"):
            learner(model(), None)
