"""Clip-Cov and KL-Cov: the selection is one for the whole batch."""

import pytest
import torch

from posttrain.functional.covariance import clip_cov, clip_cov_selection, covariances, kl_cov, kl_cov_selection
from tests.golden.fixtures import SAMPLES, A, f64, new, old

COV = covariances(A, new)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_contributions_add_up_to_the_covariance():
    assert float(torch.cov(torch.stack([A, new]), correction=0)[0, 1]) == pytest.approx(float(COV.mean()), abs=1e-12)


def test_contributions_are_detached():
    assert not covariances(A, new.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize(("share", "number"), [(2e-4, 1), (0.2, 2), (1.0, 13)])
def test_kl_cov_takes_the_largest_at_least_one(share, number):
    chosen = kl_cov_selection(COV, share=share)
    assert sorted(COV.tolist(), reverse=True)[:number] == sorted(COV[chosen].tolist(), reverse=True)


def test_of_equal_covariances_the_earlier_is_taken():
    assert [True, True, False] == kl_cov_selection(torch.ones(3), share=0.7).tolist()


def test_clip_cov_takes_only_tokens_between_the_bounds():
    covariance = f64([0.5, 2.0, 3.0, 7.0, 1.0])
    chosen = clip_cov_selection(covariance, generator=seeded(), share=1.0)
    assert [False, True, True, False, False] == chosen.tolist()


def test_clip_cov_takes_the_share_of_all_tokens_at_random():
    covariance = torch.full((1000,), 2.0)
    first = clip_cov_selection(covariance, generator=seeded(1), share=0.01)
    second = clip_cov_selection(covariance, generator=seeded(2), share=0.01)
    assert 10 == int(first.sum()) == int(second.sum())
    assert first.tolist() != second.tolist()


def test_the_same_seed_takes_the_same_tokens():
    covariance = torch.full((1000,), 2.0)
    pair = [clip_cov_selection(covariance, generator=seeded(3), share=0.01).tolist() for _ in range(2)]
    assert pair[0] == pair[1]


def test_ineligible_tokens_are_never_taken():
    chosen = clip_cov_selection(
        torch.full((3,), 2.0), generator=seeded(), share=1.0, eligible=torch.tensor([True, False, True])
    )
    assert [True, False, True] == chosen.tolist()


def test_no_candidates_no_selection():
    assert 0 == int(clip_cov_selection(torch.zeros(5), generator=seeded()).sum())
    assert 0 == int(clip_cov_selection(torch.zeros(0), generator=seeded()).sum())
    assert 0 == int(kl_cov_selection(torch.zeros(0)).sum())


def test_a_microbatch_would_select_others():
    rows = [SAMPLES == row for row in range(4)]
    parts = [kl_cov_selection(covariances(A[row], new[row]), share=0.2) for row in rows]
    assert kl_cov_selection(COV, share=0.2).tolist() != torch.cat(parts).tolist()


def test_kl_cov_pulls_back_selected_tokens_only():
    leaf, chosen = new.clone().requires_grad_(), kl_cov_selection(COV, share=0.2)
    kl_cov(leaf, old, A, chosen, coefficient=0.5).sum().backward()
    expected = -A * (new - old).exp() + torch.where(chosen, 0.5 * (new - old).sign(), 0.0)
    assert expected.tolist() == pytest.approx(leaf.grad.tolist(), abs=1e-12)


def test_clip_cov_takes_the_gradient_of_selected_tokens_only():
    leaf, chosen = new.clone().requires_grad_(), kl_cov_selection(COV, share=0.2)
    clip_cov(-A * leaf, chosen).sum().backward()
    assert torch.where(chosen, 0.0, -A).tolist() == leaf.grad.tolist()
