"""TRL's experimental ORPO and CPO trainers: ORPO, CPO, SimPO and CPO-SimPO, the same gradient."""

import importlib

import pytest
import torch

from posttrain.functional.preference import Pairs
from posttrain.functional.preference_free import odds_ratio
from tests.crosscheck import material, ours, theirs
from tests.crosscheck.theirs import assert_same

CPO = {
    "cpo": ({"cpo_alpha": 1.0}, ("cpo", {})),
    "cpo, half the likelihood": ({"cpo_alpha": 0.5, "beta": 0.3}, ("cpo", {"nll_coefficient": 0.5, "beta": 0.3})),
    "simpo": ({"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0}, ("simpo", {})),
    "cpo-simpo": (
        {"loss_type": "simpo", "cpo_alpha": 0.5, "beta": 2.5, "simpo_gamma": 0.75},
        ("simpo", {"beta": 2.5, "margin_ratio": 0.3, "nll_coefficient": 0.5}),
    ),
    "hinge": ({"loss_type": "hinge", "cpo_alpha": 0.0}, ("dpo", {"loss": "hinge", "reference_free": True})),
    "soft labels": (
        {"label_smoothing": 0.2, "cpo_alpha": 0.0},
        ("dpo", {"loss": "cdpo", "flip": 0.2, "reference_free": True}),
    ),
}


def padded(rows, fill):
    """Rows of different length as one tensor."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)


def pair_tensors(pairs):
    """The pairs as TRL's collator of these trainers lays them out."""
    batch = {}
    for side, place in (("chosen", 1), ("rejected", 2)):
        rows = [[*pair[0], *pair[place]] for pair in pairs]
        batch[f"{side}_input_ids"] = padded(rows, material.PAD)
        batch[f"{side}_attention_mask"] = padded([[1] * len(row) for row in rows], 0)
        batch[f"{side}_labels"] = padded([[-100] * len(pair[0]) + list(pair[place]) for pair in pairs], -100)
    return batch


def trl_loss(name, pairs=material.PAIRS, **options):
    model = material.policy()
    module = f"trl.experimental.{name.lower()}"
    built = theirs.trainer(name, model, "prompt chosen rejected", module=module, max_length=64, **options)
    return theirs.found(built.get_batch_loss_metrics(built.model, pair_tensors(pairs))[0], model)


def mine(name, options, pairs=material.PAIRS):
    return ours.evaluate(ours.algorithm(name, **options), material.pair_groups(pairs), material.policy())


@pytest.mark.parametrize("case", CPO)
def test_cpo_trainer(case):
    options, plug = CPO[case]
    assert_same(trl_loss("CPO", **options), mine(*plug))


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_orpo_of_one_pair_whose_prompt_is_one_token(weight):
    """Nothing predicts the prompt's only token, so here TRL's likelihood covers the answer alone as well."""
    pairs = [((7,), *material.PAIRS[0][1:])]
    assert_same(trl_loss("ORPO", pairs, beta=weight), mine("orpo", {"weight": weight}, pairs))


def test_orpo_likelihood_covers_the_prompt_in_trl():
    """TRL takes one mean over the tokens of all prompts and chosen answers, posttrain the mean of answers' means."""
    theirs_loss, found = trl_loss("ORPO", beta=0.1).loss, mine("orpo", {"weight": 0.1})
    rows = [answer_and_prompt_nll(prompt, chosen) for prompt, chosen, _ in material.PAIRS]
    whole = torch.cat([torch.cat(row) for row in rows]).mean()
    answers = torch.stack([answer.mean() for _, answer in rows]).mean()
    assert theirs_loss - found.loss == pytest.approx(float(whole - answers), abs=1e-5)
    assert abs(theirs_loss - found.loss) > 1e-3


def answer_and_prompt_nll(prompt, answer):
    """Negative log-likelihood of the prompt's tokens but the first, and of the answer's."""
    ids = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        logs = material.policy()(input_ids=ids, use_cache=False).logits[0, :-1].double().log_softmax(-1)
    losses = -logs.gather(1, ids[0, 1:, None])[:, 0]
    return losses[: len(prompt) - 1], losses[len(prompt) - 1 :]


@pytest.mark.parametrize("averages", [(-0.5, -2.0), (-3.0, -0.1), (-1e-3, -8.0)])
def test_odds_ratio_of_given_log_probabilities(averages):
    """Their method works in float32."""
    orpo = importlib.import_module("trl.experimental.orpo").ORPOTrainer
    chosen, rejected = (torch.tensor([value], dtype=torch.float64) for value in averages)
    one = torch.ones(1, dtype=torch.int64)
    pairs = Pairs(chosen=chosen, rejected=rejected, chosen_count=one, rejected_count=one)
    stand_in = type("Trainer", (), {"beta": 0.1, "accelerator": type("Here", (), {"device": "cpu"})})()
    losses = orpo.odds_ratio_loss(stand_in, chosen, rejected)[0]
    assert (-losses).tolist() == pytest.approx((0.1 * odds_ratio(pairs)).tolist(), rel=1e-5, abs=1e-5)
