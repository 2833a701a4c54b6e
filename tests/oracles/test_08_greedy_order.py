"""Oracle 8: an order found from visible tokens alone gives a likelihood; the best order for each string gives none."""

from __future__ import annotations

import pytest
import torch

from mdlm.errors import UserError
from mdlm.likelihood import deterministic_order_nll, order_nll

MASK = 3


def margin(probabilities_V):
    first, second = probabilities_V.topk(2).values
    return float(first - second)


CERTAINTIES = {
    "confidence": lambda probabilities_V: float(probabilities_V.max()),
    "margin": margin,
    "entropy": lambda probabilities_V: float(torch.special.xlogy(probabilities_V, probabilities_V).sum()),
}


@pytest.fixture(params=[3, 4], ids=lambda length: f"length {length}")
def length(request):
    return request.param


@pytest.mark.parametrize("block_length", [None, 2])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("score", CERTAINTIES)
def test_a_greedy_order_sums_to_one_over_all_strings(
    random_table, strings, enumeration, blocks_of, length, score, seed, block_length
):
    table, strings_SL = random_table(length, seed), strings(length)
    estimate = deterministic_order_nll(table, strings_SL, score, mask_id=MASK, block_length=block_length)
    assert float(estimate.nats_B.neg().exp().sum()) == pytest.approx(1, abs=1e-12)
    numbers = enumeration(table, strings_SL, blocks_of(list(range(length)), block_length))
    torch.testing.assert_close(estimate.nats_B, numbers.greedy_nll(CERTAINTIES[score]), rtol=1e-9, atol=0)
    assert estimate.bound == f"deterministic_order_nll:{score}"
    assert estimate.standard_error == 0.0


def test_the_three_scores_are_three_orders(random_table, strings):
    table, strings_SL = random_table(4), strings(4)
    nats = [deterministic_order_nll(table, strings_SL, score, mask_id=MASK).nats_B for score in CERTAINTIES]
    assert not nats[0].allclose(nats[1])
    assert not nats[0].allclose(nats[2])
    assert not nats[1].allclose(nats[2])


@pytest.mark.parametrize("score", CERTAINTIES)
def test_equally_certain_positions_are_revealed_from_the_left(random_table, strings, score):
    """A denoiser that says the same everywhere, whatever it sees there."""
    table, strings_SL = random_table(4), strings(4)
    table.logits_SLV = table.logits_SLV[:, :1].expand(-1, 4, -1)
    greedy = deterministic_order_nll(table, strings_SL, score, mask_id=MASK)
    from_the_left = order_nll(table, strings_SL, "left_to_right", mask_id=MASK)
    torch.testing.assert_close(greedy.nats_B, from_the_left.nats_B, rtol=1e-12, atol=0)


def test_the_best_order_of_each_string_is_no_likelihood(random_table, strings, enumeration, length):
    """Its exp(−nats) sum to more than one, so that it may undercut the entropy of any source."""
    numbers = enumeration(random_table(length), strings(length), [list(range(length))])
    best_S = torch.stack([numbers.order_nll(order) for order in numbers.orders()]).amin(0)
    assert float(best_S.neg().exp().sum()) > 1.1


@pytest.mark.parametrize("score", ["best", "random", "worst"])
def test_a_score_that_gives_no_likelihood_is_refused_by_name(random_table, strings, score):
    with pytest.raises(UserError, match=rf"(?s){score}.*confidence.*margin.*entropy"):
        deterministic_order_nll(random_table(3), strings(3), score, mask_id=MASK)


@pytest.mark.parametrize("order", ["best", "confidence"])
def test_an_order_that_depends_on_the_hidden_tokens_is_refused_by_name(random_table, strings, order):
    with pytest.raises(UserError, match=order):
        order_nll(random_table(3), strings(3), order, mask_id=MASK)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [1, 2, 3]])
def test_an_order_that_is_no_permutation_is_refused(random_table, strings, order):
    with pytest.raises(UserError, match="order"):
        order_nll(random_table(3), strings(3), torch.tensor(order), mask_id=MASK)


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
@pytest.mark.parametrize("score", CERTAINTIES)
def test_a_transformers_greedy_order_sums_to_one(tiny_model, objective, score):
    """Five real tokens, three positions behind a prompt, float32."""
    model = tiny_model(objective, vocab_size=6, block_length=2)
    real = [token for token in range(6) if token != model.config.mask_token_id]
    response_SL = torch.cartesian_prod(*[torch.tensor(real)] * 3)
    rows_SL = torch.cat([torch.tensor([5, 1]).expand(len(response_SL), -1), response_SL], dim=1)
    options = {"mask_id": model.config.mask_token_id, "response_start": 2}
    estimate = deterministic_order_nll(model, rows_SL, score, **options)
    assert float(estimate.nats_B.neg().exp().sum()) == pytest.approx(1, abs=1e-5)
