"""linear_expected_embedding: the plain product of softmax and table, without the logits of all positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from bertscore_tm.losses.soft.expectations import linear_expected_embedding
from tests.support.plain_expected_embedding import (
    VOCABULARY,
    assert_close,
    gradients,
    make,
    noise,
    plain,
    plain_cross_entropy,
    upstream,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


# Chunks differ in where excluded tokens fall; temperature and precision do not depend on them.
@pytest.mark.parametrize(
    ("dtype", "temperature", "excluded", "chunk_size"),
    [
        *((torch.float64, 0.5, excluded, size) for excluded in ((), (22, 0, 7, 8, 7)) for size in (1, 5, 22, 23, 2048)),
        *((dtype, u, (22, 0), 5) for dtype in (torch.float32, torch.float64) for u in (0.05, 1.0, 30.0)),
    ],
)
def test_equals_the_plain_product_with_gradients(dtype, temperature, excluded, chunk_size):
    hidden, weight, bias, table = make(dtype=dtype)
    expected = plain(hidden, weight, bias, table, temperature, excluded)
    found = linear_expected_embedding(
        hidden,
        weight,
        table,
        linear_bias=bias,
        temperature=temperature,
        excluded_ids=excluded,
        chunk_size=chunk_size,
    )
    leaves = (hidden, weight, bias)
    # Float32 rounds z before it is divided by the temperature, in the plain way too.
    tolerance = TOLERANCE[dtype] / min(temperature, 1.0)
    assert_close(found, expected, tolerance)
    for ours, theirs in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        assert_close(ours, theirs, tolerance)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_shape(data):
    size = st.integers(1, 9)
    positions = data.draw(st.lists(st.integers(0, 4), max_size=3), label="positions")
    vocabulary, features, width = (data.draw(size, label=name) for name in ("vocabulary", "features", "width"))
    chunk_size = data.draw(st.integers(1, 10), label="chunk_size")
    excluded = data.draw(st.sets(st.integers(0, vocabulary - 1), max_size=vocabulary - 1), label="excluded")
    hidden, weight, bias, table = make(positions, vocabulary, features, width, torch.float64)
    target = noise(*positions, seed=5).mul(100).long().remainder(vocabulary)
    expected = plain(hidden, weight, bias, table, 0.7, excluded)
    loss = plain_cross_entropy(hidden, weight, bias, target, reduction="sum")
    found, ours = linear_expected_embedding(
        hidden,
        weight,
        table,
        target,
        linear_bias=bias,
        temperature=0.7,
        excluded_ids=[*excluded],
        reduction="sum",
        chunk_size=chunk_size,
    )
    assert_close(found, expected, 1e-11)
    assert_close(ours, loss, 1e-11)
    leaves = (hidden, weight, bias)
    pairs = zip(gradients(found, leaves, ours), gradients(expected, leaves, loss), strict=True)
    for grad, other in pairs:
        assert_close(grad, other, 1e-11)


def test_against_the_sum_written_out():
    hidden, weight, bias, table = make((3,), 4, 2, 2, torch.float64)
    found = linear_expected_embedding(hidden, weight, table, linear_bias=bias, temperature=0.5, excluded_ids=[1])
    for row, y in zip(hidden, found, strict=True):
        scores = {k: torch.exp((row @ weight[k] + bias[k]) / 0.5) for k in (0, 2, 3)}
        torch.testing.assert_close(y, sum(score * table[k] for k, score in scores.items()) / sum(scores.values()))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.3}, {"excluded_ids": [2, 3]}], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_gradcheck(options, with_bias):
    hidden, weight, bias, table = make((3,), 7, 3, 2, torch.float64)
    target = torch.tensor([6, -100, 2])

    def both(hidden, weight, bias=None):
        return linear_expected_embedding(
            hidden, weight, table, target, linear_bias=bias, reduction="none", chunk_size=3, **options
        )

    assert torch.autograd.gradcheck(both, (hidden, weight, bias) if with_bias else (hidden, weight))


@pytest.mark.parametrize("used", ["embedding", "square", "cross-entropy"])
def test_can_not_be_differentiated_twice(used):
    hidden, weight, _, table = make()
    y, loss = linear_expected_embedding(hidden, weight, table, torch.full((2, 3), 4))
    value = {"embedding": y.sum(), "square": y.square().sum(), "cross-entropy": loss}[used]
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(value, hidden, create_graph=True)


@pytest.mark.parametrize("chunk_size", [2, 5, 23])
@pytest.mark.parametrize("excluded", [(), (3,)], ids=["all", "excluded"])
def test_extreme_logits(chunk_size, excluded):
    _, weight, bias, table = make()
    # Among them each token as the winner, the excluded one too, and ties.
    hidden = torch.cat([1e4 * noise(4, 8, seed=6), 1e4 * weight[:5].detach(), torch.zeros(1, 8)]).requires_grad_()
    target = torch.tensor([-100, 1, 2, 3, 0, 1, 2, 3, 4, 22])
    assert F.linear(hidden, weight).abs().max() > 5e4
    expected = plain(hidden, weight, bias, table, 1.0, excluded)
    loss = plain_cross_entropy(hidden, weight, bias, target)
    found, ours = linear_expected_embedding(
        hidden, weight, table, target, linear_bias=bias, excluded_ids=excluded, chunk_size=chunk_size
    )
    # Logits of this size are rounded to about 0.01, depending on the order of summation.
    assert_close(found, expected, 1e-2)
    assert_close(ours, loss, 1e-6)
    leaves = (hidden, weight, bias)
    for grad, other in zip(gradients(found, leaves, ours), gradients(expected, leaves, loss), strict=True):
        assert_close(grad, other, 1e-2)


def test_ties_and_certain_predictions_are_exact_however_large_the_logits():
    # Near 16,777,216 float32 holds even numbers only, so a log-sum-exp would lose the log 2 of a tie.
    hidden, weight = torch.eye(4) * 16_777_216, torch.eye(4)[[0, 1, 2, 3, 3]].requires_grad_()
    table = noise(5, 3)
    y, loss = linear_expected_embedding(hidden, weight, table, torch.arange(4), reduction="none", chunk_size=2)
    assert torch.equal(y[:3], table[:3])
    torch.testing.assert_close(y[3], table[3:].mean(0))
    torch.testing.assert_close(loss, torch.tensor([1.0, 1.0, 1.0, 2.0]).log())
    (grad,) = torch.autograd.grad(loss.sum(), weight)
    assert torch.equal(grad, torch.outer(torch.tensor([0.0, 0.0, 0.0, -0.5, 0.5]), hidden[3]))


@pytest.mark.parametrize("excluded", [(), (0, 1)], ids=["all", "excluded"])
def test_tokens_masked_by_minus_infinity(excluded):
    hidden, weight, bias, table = make()
    mask = torch.zeros(VOCABULARY)
    # A whole part, a part of one, and the first and last token.
    mask[[0, 5, 6, 7, 8, 9, 12, 22]] = -torch.inf
    barred = bias + mask
    target = torch.full((2, 3), 3)
    expected, loss = (
        plain(hidden, weight, barred, table, 1.0, excluded),
        plain_cross_entropy(hidden, weight, barred, target),
    )
    found, ours = linear_expected_embedding(
        hidden, weight, table, target, linear_bias=barred, excluded_ids=excluded, chunk_size=5
    )
    assert_close(found, expected, 1e-5)
    assert_close(ours, loss, 1e-5)
    leaves = (hidden, weight, bias)
    grads = gradients(found, leaves, ours)
    for grad, other in zip(grads, gradients(expected, leaves, loss), strict=True):
        assert_close(grad, other, 1e-5)
    assert (grads[1][mask.isinf()] == 0).all()


def test_no_token_but_excluded_ones_is_as_in_the_plain_way():
    hidden, weight, _, table = make()
    bias = torch.full((VOCABULARY,), -torch.inf).index_fill(0, torch.tensor([4, 20]), 0.0).requires_grad_()
    expected = plain(hidden, weight, bias, table, 1.0, [4, 20])
    found = linear_expected_embedding(hidden, weight, table, linear_bias=bias, excluded_ids=[4, 20], chunk_size=6)
    assert_close(found, expected, 1e-6)
    for grad in gradients(found, (hidden, weight, bias)):
        assert (grad == 0).all()


@pytest.mark.parametrize("positions", [(), (1,), (0,), (2, 0, 3)], ids=str)
def test_one_row_and_none(positions):
    hidden, weight, bias, table = make(positions)
    target = torch.full(positions, 3)
    found, loss = linear_expected_embedding(
        hidden, weight, table, target, linear_bias=bias, reduction="none", chunk_size=9
    )
    assert_close(found, plain(hidden, weight, bias, table), 1e-5)
    assert loss.shape == torch.Size(positions)
    grads = gradients(found, (hidden, weight, bias), loss.sum())
    assert [grad.shape for grad in grads] == [hidden.shape, weight.shape, bias.shape]
    assert all(grad.isfinite().all() for grad in grads)
    if 0 in positions:
        assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 0, 22])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.2, "excluded_ids": [0, 4, 21]}], ids=["usual", "relaxed"])
def test_cross_entropy_is_that_of_torch(reduction, ignore_index, options):
    hidden, weight, bias, table = make((4, 3), dtype=torch.float64)
    target = torch.tensor([[4, 21, 22], [0, 0, 1], [10, ignore_index, 3], [ignore_index] * 3])
    expected = plain_cross_entropy(hidden, weight, bias, target, reduction=reduction, ignore_index=ignore_index)
    _, found = linear_expected_embedding(
        hidden,
        weight,
        table,
        target,
        linear_bias=bias,
        reduction=reduction,
        ignore_index=ignore_index,
        chunk_size=4,
        **options,
    )
    assert_close(found, expected.view(4, 3) if reduction == "none" else expected, 1e-12)
    factors = upstream(found)
    ours = torch.autograd.grad((found * factors).sum(), (hidden, weight, bias))
    theirs = torch.autograd.grad((expected.view_as(found) * factors).sum(), (hidden, weight, bias))
    for grad, other in zip(ours, theirs, strict=True):
        assert_close(grad, other, 1e-12)


def test_mean_over_no_target_is_nan_without_gradient_as_in_torch():
    hidden, weight, bias, table = make((2,))
    target = torch.full((2,), -100)
    expected = plain_cross_entropy(hidden, weight, bias, target)
    _, loss = linear_expected_embedding(hidden, weight, table, target, linear_bias=bias)
    assert expected.isnan()
    assert loss.isnan()
    for ours, theirs in zip(*(torch.autograd.grad(x, (hidden, weight, bias)) for x in (loss, expected)), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours.any()


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this PyTorch has no linear_cross_entropy")
def test_arguments_are_those_of_torch():
    hidden, weight, bias, table = make((6,))
    options = {"linear_bias": bias, "reduction": "sum", "ignore_index": 3}
    target = torch.tensor([3, 1, 2, 3, 22, 0])
    expected = F.linear_cross_entropy(hidden, weight, target, **options)
    _, found = linear_expected_embedding(input=hidden, linear_weight=weight, table=table, target=target, **options)
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    hidden, weight, bias, table = (tensor.detach().to(dtype) for tensor in make((20,), 500, 16, 8))
    halves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    floats = [tensor.detach().float().requires_grad_() for tensor in halves]
    target = torch.arange(20) * 7
    found, ours = linear_expected_embedding(*halves[:2], table, target, linear_bias=halves[2], chunk_size=64)
    expected, loss = plain(*floats, table.float()), plain_cross_entropy(*floats, target)
    assert_close(found, expected, 1e-5)
    assert_close(ours, loss, 1e-5)
    grads = gradients(found, halves, ours)
    for grad, other in zip(grads, gradients(expected, floats, loss), strict=True):
        # Rounded once, at the end.
        assert_close(grad, other.to(dtype), torch.finfo(dtype).eps)


@pytest.mark.parametrize("double", range(4))
def test_float64_is_never_cast_down(double):
    tensors = [tensor.detach() for tensor in make()]
    mixed = [tensor.double() if i == double else tensor for i, tensor in enumerate(tensors)]
    hidden, weight, bias, table = mixed
    leaves = [tensor.requires_grad_() for tensor in mixed[:3]]
    found = linear_expected_embedding(hidden, weight, table, linear_bias=bias, chunk_size=7)
    expected = plain(*(tensor.double() for tensor in mixed))
    assert_close(found, expected, 1e-12)
    for grad, leaf, other in zip(gradients(found, leaves), leaves, gradients(expected, leaves), strict=True):
        assert grad.dtype == leaf.dtype
        assert_close(grad, other, 1e-12 if leaf.dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_lower_the_precision(dtype):
    hidden, weight, bias, table = make((20,), 500, 16, 8)
    target = torch.arange(20)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype, enabled=enabled):
            y, loss = linear_expected_embedding(hidden, weight, table, target, linear_bias=bias, chunk_size=64)
            results.append([y, loss, *gradients(y, (hidden, weight, bias), loss)])
            assert (hidden @ weight.t()).dtype == (dtype if enabled else torch.float32)
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"temperature": 0.0}, ValueError, "temperature must be above 0, got 0"),
        ({"temperature": float("nan")}, ValueError, "temperature must be above 0, got nan"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ({"reduction": "max"}, ValueError, "reduction='max' is not one of 'mean', 'sum', 'none'"),
        ({"excluded_ids": [3, 23]}, ValueError, "excluded_ids holds ids outside the vocabulary of 23"),
        ({"excluded_ids": [-1]}, ValueError, "excluded_ids holds ids outside the vocabulary of 23"),
        ({"input": torch.zeros(2, 3, 7)}, ValueError, r"input and linear_weight must have shapes .*\(2, 3, 7\)"),
        ({"input": torch.tensor(0.0)}, ValueError, "input and linear_weight must have shapes"),
        ({"linear_weight": torch.zeros(8)}, ValueError, "input and linear_weight must have shapes"),
        ({"linear_weight": torch.zeros(22, 8)}, ValueError, "table must have a row for each of the 22 tokens"),
        ({"table": torch.zeros(23)}, ValueError, "table must have a row for each of the 23 tokens"),
        ({"table": torch.zeros(23, 5, requires_grad=True)}, ValueError, "table.detach()"),
        ({"linear_bias": torch.zeros(22)}, ValueError, r"linear_bias must have shape \(23,\), got \(22,\)"),
        ({"target": torch.zeros(2, 2, dtype=torch.long)}, ValueError, r"target must have the shape \(2, 3\)"),
        ({"target": torch.zeros(2, 3)}, TypeError, "target must hold token ids as int64, got torch.float32"),
        ({"target": torch.full((2, 3), 23)}, ValueError, "target holds ids outside the vocabulary of 23"),
        ({"target": torch.full((2, 3), -1)}, ValueError, "mark positions to ignore with ignore_index=-100"),
    ],
    ids=str,
)
def test_bad_arguments(changes, error, message):
    hidden, weight, bias, table = make()
    arguments = {"input": hidden, "linear_weight": weight, "table": table, "linear_bias": bias}
    with pytest.raises(error, match=message):
        linear_expected_embedding(**(arguments | changes))
