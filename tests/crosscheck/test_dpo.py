"""TRL's DPO trainer: every loss it shares with posttrain, the same pairs, the same gradient."""

import pytest
import torch

from tests.crosscheck import material, ours, theirs
from tests.crosscheck.theirs import assert_same

CASES = {
    "sigmoid": ({}, {}),
    "hinge": ({"loss_type": ["hinge"]}, {"loss": "hinge"}),
    "ipo": ({"loss_type": ["ipo"]}, {"loss": "ipo_average"}),
    "robust": ({"loss_type": ["robust"], "label_smoothing": 0.2}, {"loss": "robust", "flip": 0.2}),
    "exo": ({"loss_type": ["exo_pair"], "label_smoothing": 1e-2}, {"loss": "exo", "smoothing": 1e-2}),
    "nca": ({"loss_type": ["nca_pair"]}, {"loss": "nca"}),
    "bco_pair": ({"loss_type": ["bco_pair"]}, {"loss": "bco_pair"}),
    "sppo": ({"loss_type": ["sppo_hard"]}, {"loss": "sppo"}),
    "apo_zero": ({"loss_type": ["apo_zero"]}, {"loss": "apo_zero"}),
    "apo_down": ({"loss_type": ["apo_down"]}, {"loss": "apo_down"}),
    "length-normalised": ({"loss_type": ["sigmoid_norm"], "beta": 2.0}, {"loss": "length_normalised", "beta": 2.0}),
    "forward KL": ({"f_divergence_type": "forward_kl"}, {"divergence": "forward_kl"}),
    "Jensen-Shannon": ({"f_divergence_type": "js_divergence"}, {"divergence": "jensen_shannon"}),
    "LD-DPO": ({"ld_alpha": 0.3}, {"length_alpha": 0.3}),
    "likelihood beside it": (
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
        {"nll_coefficient": 0.5, "nll_normaliser": "batch_token_mean"},
    ),
}


def trl_loss(pairs=material.PAIRS, **options):
    """TRL's loss and gradient on the pairs."""
    model = material.policy()
    options = {"max_length": None} | options
    built = theirs.trainer("DPO", model, "prompt chosen rejected", parts={"ref_model": material.reference()}, **options)
    rows = [
        {"prompt_ids": list(prompt), "chosen_ids": list(chosen), "rejected_ids": list(rejected)}
        for prompt, chosen, rejected in pairs
    ]
    return theirs.found(built._compute_loss(built.model, built.data_collator(rows), False), model)


def mine(pairs=material.PAIRS, **options):
    plug = ours.algorithm("dpo", **options)
    return ours.evaluate(plug, material.pair_groups(pairs), material.policy(), reference=material.reference())


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case):
    options, plug = CASES[case]
    assert_same(trl_loss(**options), mine(**plug))


@pytest.mark.parametrize("coefficient", [0.3, 0.5])
def test_alpha_divergence_counts_from_the_other_end(coefficient):
    """TRL's coefficient is 1 at reverse KL and 0 at forward KL; posttrain's parameter is its complement."""
    options = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": coefficient}
    assert_same(trl_loss(**options), mine(divergence="alpha", divergence_alpha=1 - coefficient))


def test_wpo_where_no_weight_reaches_one():
    assert float(pair_weights(material.PAIRS).max()) < 1
    assert_same(trl_loss(use_weighting=True), mine(weighting="wpo"))


def greedy(prompt, count):
    """The policy's most probable continuation: it is more probable than a draw that agrees with another."""
    model, ids = material.policy(), list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


def test_wpo_weights_above_one_are_capped_here_and_not_in_trl():
    pairs = [(prompt, greedy(prompt, 4), greedy(prompt, 2)) for prompt in material.PROMPTS]
    weights, losses = pair_weights(pairs), pair_losses(pairs)
    assert float(weights.min()) > 1
    assert trl_loss(pairs, use_weighting=True).loss == pytest.approx(float((weights * losses).mean()), rel=1e-5)
    assert mine(pairs, weighting="wpo").loss == pytest.approx(float(losses.mean()), rel=1e-5)


def answer_logits(model, prompt, answer):
    """Logits that predict the answer's tokens, float64."""
    ids = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].double(), torch.tensor(answer)


def pair_weights(pairs):
    """WPO's weight of each pair by the formula, without a cap."""
    model, products = material.policy(), []
    for prompt, *answers in pairs:
        found = 0.0
        for answer in answers:
            logits, tokens = answer_logits(model, prompt, answer)
            logs = logits.log_softmax(-1)
            sampled = logs.gather(1, tokens[:, None])[:, 0]
            found = found + (sampled - (2 * logs).logsumexp(-1)).mean()
        products.append(found.exp())
    return torch.stack(products)


def pair_losses(pairs, beta=0.1):
    """DPO's loss of each pair by the formula."""
    models, losses = (material.policy(), material.reference()), []
    for prompt, *answers in pairs:
        ratios = []
        for answer in answers:
            sums = []
            for model in models:
                logits, tokens = answer_logits(model, prompt, answer)
                sums.append(logits.log_softmax(-1).gather(1, tokens[:, None]).sum())
            ratios.append(sums[0] - sums[1])
        losses.append(-torch.nn.functional.logsigmoid(beta * (ratios[0] - ratios[1])))
    return torch.stack(losses)
