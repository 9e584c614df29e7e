"""Sampling: the distribution after each filter, the draw from it, and the fused form of both."""

import math

import pytest
import torch

from posttrain.functional.counter import uniform
from posttrain.functional.sampling import draw, processed_logprobs, sample

PROBABILITIES = [0.4, 0.3, 0.15, 0.1, 0.05]


def logits_of(probabilities=PROBABILITIES, dtype=torch.float64):
    return torch.tensor([probabilities], dtype=dtype).log()


def kept(logprobs):
    return [index for index, value in enumerate(logprobs[0].tolist()) if value > -math.inf]


def many_uniforms(count):
    return uniform(torch.arange(count), torch.zeros(count, dtype=torch.int64))


class TestProcessedLogprobs:
    def test_without_filters_it_is_the_log_softmax(self):
        logits = torch.randn(3, 50, dtype=torch.float64)
        assert torch.equal(torch.log_softmax(logits, -1), processed_logprobs(logits))

    def test_temperature_divides_the_logits(self):
        logits = torch.randn(3, 50, dtype=torch.float64)
        assert torch.equal(torch.log_softmax(logits / 0.7, -1), processed_logprobs(logits, temperature=0.7))

    def test_temperature_zero_is_certain_of_the_most_probable(self):
        assert [0.0, -math.inf, -math.inf, -math.inf, -math.inf] == processed_logprobs(logits_of(), 0.0)[0].tolist()

    def test_among_equals_greedy_takes_the_lowest_id(self):
        assert [1] == kept(processed_logprobs(torch.tensor([[0.0, 2.0, 2.0]]), 0.0))

    def test_top_k_keeps_the_k_most_probable(self):
        assert [0, 1, 2] == kept(processed_logprobs(logits_of(), top_k=3))

    def test_top_k_among_equals_keeps_exactly_k(self):
        assert [0, 1] == kept(processed_logprobs(torch.zeros(1, 5), top_k=2))

    def test_top_k_beyond_the_vocabulary_keeps_all(self):
        assert torch.allclose(logits_of(), processed_logprobs(logits_of(), top_k=99), rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        ("top_p", "expected"),
        [(0.39, [0]), (0.41, [0, 1]), (0.69, [0, 1]), (0.71, [0, 1, 2]), (0.999, [0, 1, 2, 3, 4])],
    )
    def test_top_p_keeps_the_smallest_set_that_reaches_it(self, top_p, expected):
        assert expected == kept(processed_logprobs(logits_of(), top_p=top_p))

    def test_a_tiny_top_p_keeps_the_most_probable(self):
        assert [0] == kept(processed_logprobs(logits_of(), top_p=1e-9))

    def test_top_p_counts_over_what_top_k_left(self):
        # After top-k 2 the shares are 4/7 and 3/7: 0.5 is reached by the first alone, while 0.4 of all would not be.
        assert [0] == kept(processed_logprobs(logits_of(), top_p=0.5, top_k=2))
        assert [0, 1] == kept(processed_logprobs(logits_of(), top_p=0.5))

    @pytest.mark.parametrize(("min_p", "expected"), [(0.2, [0, 1, 2, 3]), (0.3, [0, 1, 2]), (0.99, [0])])
    def test_min_p_is_a_share_of_the_top_probability(self, min_p, expected):
        assert expected == kept(processed_logprobs(logits_of(), min_p=min_p))

    def test_temperature_comes_before_the_filters(self):
        assert [0, 1, 2, 3, 4] == kept(processed_logprobs(logits_of(), temperature=10.0, min_p=0.5))

    @pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3}], ids=str)
    def test_what_is_left_sums_to_one_in_the_old_proportions(self, options):
        logprobs = processed_logprobs(logits_of(), **options)
        assert pytest.approx(1.0, abs=1e-12) == logprobs.exp().sum().item()
        assert pytest.approx(0.4 / 0.3, rel=1e-12) == (logprobs[0, 0] - logprobs[0, 1]).exp().item()

    def test_rows_may_differ_in_every_parameter(self):
        logits = torch.randn(4, 30, dtype=torch.float64)
        columns = {
            "temperature": [1.0, 0.0, 0.5, 2.0],
            "top_p": [1.0, 0.9, 0.5, 0.8],
            "top_k": [0, 3, 20, 5],
            "min_p": [0.1, 0.0, 0.0, 0.05],
        }
        together = processed_logprobs(logits, **{name: torch.tensor(values) for name, values in columns.items()})
        for row in range(4):
            alone = processed_logprobs(logits[row : row + 1], **{name: values[row] for name, values in columns.items()})
            assert torch.allclose(alone[0].exp(), together[row].exp(), rtol=0, atol=1e-7)

    @pytest.mark.parametrize("spread", [0.1, 8.0], ids=["flat", "peaked"])
    def test_a_large_vocabulary_gives_what_full_sorting_gives(self, spread):
        logits = torch.randn(2, 3000, dtype=torch.float64) * spread
        ordered, order = torch.softmax(logits, -1).sort(descending=True)
        reaches = ordered.cumsum(-1) - ordered < 0.9
        expected = torch.zeros_like(reaches).scatter(1, order, reaches)
        assert torch.equal(expected, processed_logprobs(logits, top_p=0.9) > -math.inf)

    def test_forbidden_ids_have_no_probability(self):
        logprobs = processed_logprobs(logits_of(), forbidden=[0])
        assert [1, 2, 3, 4] == kept(logprobs)
        assert pytest.approx(0.5, abs=1e-12) == logprobs[0, 1].exp().item()

    def test_half_precision_is_raised_to_float32(self):
        assert torch.float32 == processed_logprobs(torch.randn(1, 5, dtype=torch.bfloat16)).dtype

    def test_single_tokens_may_be_impossible(self):
        assert [1] == kept(processed_logprobs(torch.tensor([[-math.inf, 0.0, -math.inf]])))

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_logits_that_are_not_finite_are_refused_with_the_row(self, bad):
        logits = torch.zeros(3, 4)
        logits[1, 2] = bad
        with pytest.raises(ValueError, match=r"rows \[1\] are not finite"):
            processed_logprobs(logits)

    def test_a_row_of_impossible_tokens_is_refused(self):
        with pytest.raises(ValueError, match="not finite"):
            processed_logprobs(torch.full((1, 3), -math.inf))


class TestDraw:
    @pytest.mark.parametrize(("number", "expected"), [(1e-12, 0), (0.39, 0), (0.41, 1), (0.69, 1), (0.96, 4)])
    def test_it_inverts_the_running_sum(self, number, expected):
        assert expected == draw(logits_of(), torch.tensor([number], dtype=torch.float64)).item()

    @pytest.mark.parametrize("width", [3, 600, 5000])
    def test_a_number_close_to_one_never_gives_an_impossible_token(self, width):
        logprobs = torch.full((1, width), -math.inf)
        logprobs[0, 1] = math.log(0.5)
        logprobs[0, 0] = math.log(0.5)
        assert 1 == draw(logprobs, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).item()

    @pytest.mark.parametrize("width", [3, 600, 5000])
    def test_a_number_close_to_zero_never_gives_an_impossible_token(self, width):
        logprobs = torch.full((1, width), -math.inf)
        logprobs[0, -1] = 0.0
        assert width - 1 == draw(logprobs, torch.tensor([2.0**-53], dtype=torch.float64)).item()

    @pytest.mark.parametrize("width", [1000, 1024, 1025, 50257])
    def test_two_levels_give_what_one_running_sum_gives(self, width):
        logprobs = torch.log_softmax(torch.randn(40, width, dtype=torch.float64) * 2, -1)
        uniforms = many_uniforms(40)
        expected = torch.searchsorted(logprobs.exp().cumsum(-1), uniforms.unsqueeze(1), right=True).squeeze(1)
        assert torch.equal(expected, draw(logprobs, uniforms))

    def test_frequencies_are_the_probabilities(self):
        ids = draw(logits_of().expand(20000, -1), many_uniforms(20000))
        shares = torch.bincount(ids, minlength=5) / 20000
        for expected, share in zip(PROBABILITIES, shares.tolist(), strict=True):
            assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 20000)


class TestSample:
    OPTIONS = (
        {},
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"top_p": 0.8},
        {"top_k": 4},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_p": 0.9, "top_k": 10, "min_p": 0.01},
        {"forbidden": [3, 5]},
        {"temperature": torch.tensor([0.0, 1.0] * 32)},
    )

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    @pytest.mark.parametrize("width", [40, 900])
    def test_it_is_the_draw_from_the_processed_distribution(self, width, options):
        logits, uniforms = torch.randn(64, width) * 2, many_uniforms(64)
        logprobs = processed_logprobs(logits, **options)
        ids, chosen = sample(logits, uniforms, **options)
        assert torch.equal(draw(logprobs, uniforms), ids)
        assert torch.allclose(logprobs.gather(1, ids.unsqueeze(1)).squeeze(1).double(), chosen, rtol=0, atol=1e-6)

    def test_log_probabilities_are_exact_in_float64(self):
        logits, uniforms = torch.randn(64, 900, dtype=torch.float64), many_uniforms(64)
        ids, chosen = sample(logits, uniforms, temperature=0.6)
        expected = torch.log_softmax(logits / 0.6, -1).gather(1, ids.unsqueeze(1)).squeeze(1)
        assert torch.allclose(expected, chosen, rtol=0, atol=1e-12)

    def test_greedy_is_certain(self):
        ids, chosen = sample(torch.tensor([[0.0, 3.0]]), many_uniforms(1), temperature=0.0)
        assert (1, 0.0) == (ids.item(), chosen.item())

    def test_logits_stay_as_they_were(self):
        logits = torch.randn(4, 30)
        before = logits.clone()
        sample(logits, many_uniforms(4), temperature=0.5, forbidden=[1])
        assert torch.equal(before, logits)

    def test_a_forbidden_favourite_leaves_a_proper_distribution(self):
        logits = torch.tensor([[500.0, 0.0, 0.0]])
        ids, chosen = sample(logits, many_uniforms(1), forbidden=[0])
        assert ids.item() in (1, 2)
        assert pytest.approx(math.log(0.5)) == chosen.item()

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_logits_that_are_not_finite_are_refused(self, temperature):
        with pytest.raises(ValueError, match="not finite"):
            sample(torch.tensor([[0.0, math.nan]]), many_uniforms(1), temperature=temperature)
