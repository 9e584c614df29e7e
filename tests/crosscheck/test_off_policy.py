"""TRL's off-policy sequence mask (DeepSeek-V3.2) against posttrain's, row by row."""

import pytest
import torch

from posttrain.functional.rejection import opsm_keep
from tests.crosscheck.theirs import trl

COUNTS = torch.tensor([3, 5, 1, 4, 2, 5])
ADVANTAGES = torch.tensor([1.0, -1.0, -0.5, 0.0, -2.0, -0.1], dtype=torch.float64)


def rows():
    """Current and sampler's log-probabilities [6, 5], NaN behind each row's tokens, and the mask."""
    generator = torch.Generator().manual_seed(6)
    mask = torch.arange(5) < COUNTS[:, None]
    drawn = [torch.where(mask, -torch.rand(6, 5, generator=generator, dtype=torch.float64), torch.nan) for _ in "ab"]
    return *drawn, mask


@pytest.mark.parametrize("bound", [0.0, 0.1, 0.3])
def test_same_rows_are_kept(bound):
    """TRL multiplies by its mask and so needs finite padding; its bound counts inclusively, like posttrain's."""
    new, sampled, mask = rows()
    padded = [values.nan_to_num(0.0) for values in (new, sampled)]
    expected = trl.GRPOTrainer.get_off_policy_mask(ADVANTAGES[:, None], *padded, mask.long(), bound)[:, 0].bool()
    samples = torch.repeat_interleave(torch.arange(6), COUNTS)
    actual = opsm_keep(ADVANTAGES[samples], sampled[mask], new[mask], samples, 6, bound=bound)
    assert 0 < int(expected[ADVANTAGES < 0].sum()) < int((ADVANTAGES < 0).sum())
    assert expected.tolist() == actual.tolist()
