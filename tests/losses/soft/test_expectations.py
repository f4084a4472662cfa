"""Expected embeddings from hidden states and from logits: the plain product of softmax and table, in less memory."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from bertscore_tm.losses import expected_embedding, linear_expected_embedding, softmax_relaxation
from bertscore_tm.losses.soft import expectations
from bertscore_tm.losses.soft.expectations import softmax_expectation
from tests.support.soft_predictions import Largest, normal

VOCABULARY = 23
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def make(positions=(2, 3), vocabulary=VOCABULARY, features=8, width=5, dtype=torch.float32):
    """Hidden states, weight and bias that want gradients, and a table."""
    return (
        normal(*positions, features, dtype=dtype).requires_grad_(),
        normal(vocabulary, features, dtype=dtype, seed=1).requires_grad_(),
        normal(vocabulary, dtype=dtype, seed=2).requires_grad_(),
        normal(vocabulary, width, dtype=dtype, seed=3),
    )


def embed(tensors, target=None, **options):
    hidden, weight, bias, table = tensors
    return linear_expected_embedding(hidden, weight, table, target, linear_bias=bias, **options)


def plain(tensors, temperature=1.0, excluded_ids=()):
    """By the definition."""
    hidden, weight, bias, table = tensors
    content = [k for k in range(len(weight)) if k not in excluded_ids]
    logits = F.linear(hidden, weight, bias)[..., content]
    return (logits / temperature).softmax(-1) @ table[content]


def plain_cross_entropy(leaves, target, **options):
    logits = F.linear(*leaves)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), **options)


def upstream(y):
    return normal(*y.shape, dtype=y.dtype, seed=4)


def gradients(y, leaves, loss=0.0):
    return torch.autograd.grad((y * upstream(y)).sum() + loss, leaves)


def assert_close(result, expected, tolerance):
    """To the tolerance, relative to the largest number where that is above 1; of tensors or lists of them."""
    if not isinstance(result, list | tuple):
        result = [result]
        expected = [expected]
    for ours, theirs in zip(result, expected, strict=True):
        largest = 1.0
        if theirs.numel():
            largest = max(largest, theirs.abs().max().item())
        assert theirs.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * largest)


# From hidden states: values and gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.05, 30.0])
def test_equals_the_plain_product_with_gradients(dtype, temperature, monkeypatch):
    monkeypatch.setenv("BERTSCORE_TM_ONEDNN", "1")  # in float32, on processors of Intel too
    tensors = make(dtype=dtype)
    expected = plain(tensors, temperature, (22, 0))
    result = embed(tensors, temperature=temperature, excluded_ids=(22, 0, 22), chunk_size=5)
    # Float32 rounds z before it is divided by the temperature, in the plain way too.
    tolerance = TOLERANCE[dtype] / min(temperature, 1.0)

    assert_close(result, expected, tolerance)
    assert_close(gradients(result, tensors[:3]), gradients(expected, tensors[:3]), tolerance)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_shape(data):
    size = st.integers(1, 9)
    positions = data.draw(st.lists(st.integers(0, 4), max_size=3), label="positions")
    vocabulary, features, width = (data.draw(size, label=name) for name in ("vocabulary", "features", "width"))
    chunk_size = data.draw(st.integers(1, 10), label="chunk_size")
    excluded = data.draw(st.sets(st.integers(0, vocabulary - 1), max_size=vocabulary - 1), label="excluded")
    tensors = make(positions, vocabulary, features, width, torch.float64)
    target = normal(*positions, seed=5).mul(100).long().remainder(vocabulary)
    of_torch = {"reduction": data.draw(st.sampled_from(["mean", "sum", "none"]), label="reduction")}
    of_torch["ignore_index"] = data.draw(st.integers(-1, vocabulary), label="ignore_index")
    assume(of_torch["reduction"] != "mean" or (target != of_torch["ignore_index"]).any())
    expected = plain(tensors, 0.7, excluded)
    options = {"temperature": 0.7, "excluded_ids": [*excluded], "chunk_size": chunk_size}
    result, ours = embed(tensors, target, **options, **of_torch)
    loss = plain_cross_entropy(tensors[:3], target, **of_torch).view_as(ours)

    assert_close((result, ours), (expected, loss), 1e-11)
    ours, loss = ((values * upstream(values)).sum() for values in (ours, loss))
    assert_close(gradients(result, tensors[:3], ours), gradients(expected, tensors[:3], loss), 1e-11)


def test_can_not_be_differentiated_twice():
    hidden, weight, bias, table = make()
    y, loss = embed((hidden, weight, bias, table), torch.full((2, 3), 4))
    of_logits = softmax_expectation(hidden @ weight.T, table)

    for value in (y.sum(), y.square().sum(), loss, of_logits.sum()):
        with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
            torch.autograd.grad(value, hidden, create_graph=True, retain_graph=True)


@pytest.mark.parametrize(("chunk_size", "excluded"), [(2, ()), (5, (3,)), (23, (3,))])
def test_extreme_logits(chunk_size, excluded):
    _, weight, bias, table = make()
    # Among them each token as the winner, the excluded one too, and ties.
    hidden = torch.cat([1e4 * normal(4, 8, seed=6), 1e4 * weight[:5].detach(), torch.zeros(1, 8)]).requires_grad_()
    target = torch.tensor([-100, 1, 2, 3, 0, 1, 2, 3, 4, 22])

    assert F.linear(hidden, weight).abs().max() > 5e4
    leaves = (hidden, weight, bias)
    expected = plain((*leaves, table), 1.0, excluded)
    loss = plain_cross_entropy(leaves, target)
    result, ours = embed((*leaves, table), target, excluded_ids=excluded, chunk_size=chunk_size)
    # Logits of this size are rounded to about 0.01, depending on the order of summation.
    assert_close(result, expected, 1e-2)
    assert_close(ours, loss, 1e-6)
    assert_close(gradients(result, leaves, ours), gradients(expected, leaves, loss), 1e-2)


def test_ties_and_certain_predictions_are_exact():
    # Near 16,777,216 float32 holds even numbers only, so a log-sum-exp would lose the log 2 of a tie.
    hidden = torch.eye(4) * 16_777_216
    weight = torch.eye(4)[[0, 1, 2, 3, 3]].requires_grad_()
    table = normal(5, 3)
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
    target = torch.full((2, 3), 3)
    leaves = (hidden, weight, bias)
    barred = (hidden, weight, bias + mask)
    expected = plain((*barred, table), 1.0, excluded)
    loss = plain_cross_entropy(barred, target)
    result, ours = embed((*barred, table), target, excluded_ids=excluded, chunk_size=5)

    assert_close((result, ours), (expected, loss), 1e-5)
    grads = gradients(result, leaves, ours)
    assert_close(grads, gradients(expected, leaves, loss), 1e-5)
    assert (grads[1][mask.isinf()] == 0).all()


def test_excluded_tokens_alone_give_a_finite_value():
    hidden, weight, _, table = make()
    bias = torch.full((VOCABULARY,), -torch.inf).index_fill(0, torch.tensor([4, 20]), 0.0).requires_grad_()
    result = embed((hidden, weight, bias, table), excluded_ids=[4, 20], chunk_size=6)
    expected = expected_embedding(softmax_relaxation(F.linear(hidden, weight, bias), 1.0, [4, 20]), table)

    assert_close(result, expected, 1e-6)
    assert not any(gradient.any() for gradient in gradients(result, (hidden, weight, bias)))


def test_mean_over_no_target_is_nan_without_gradient_as_in_torch():
    hidden, weight, bias, table = make((2,))
    target = torch.full((2,), -100)
    _, loss = embed((hidden, weight, bias, table), target)

    assert loss.isnan()
    assert plain_cross_entropy((hidden, weight, bias), target).isnan()
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (hidden, weight, bias)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    *halves, table = (tensor.detach().to(dtype) for tensor in make((20,), 500, 16, 8))
    halves = [tensor.requires_grad_() for tensor in halves]
    floats = [tensor.detach().float().requires_grad_() for tensor in halves]
    target = torch.arange(20) * 7
    result, ours = embed((*halves, table), target, chunk_size=64)
    expected = plain((*floats, table.float()))
    loss = plain_cross_entropy(floats, target)

    assert_close((result, ours), (expected, loss), 1e-5)
    # Rounded once, at the end.
    rounded = [gradient.to(dtype) for gradient in gradients(expected, floats, loss)]
    assert_close(gradients(result, halves, ours), rounded, torch.finfo(dtype).eps)
    with torch.autocast("cpu", dtype):
        assert (floats[0] @ floats[1].t()).dtype == dtype
        assert torch.equal(embed((*floats, table), chunk_size=64), result)


@pytest.mark.parametrize("double", range(4))
def test_float64_is_never_cast_down(double):
    mixed = [tensor.detach() for tensor in make()]
    mixed[double] = mixed[double].double()
    leaves = [tensor.requires_grad_() for tensor in mixed[:3]]
    result = embed(mixed, chunk_size=7)
    expected = plain(tensor.double() for tensor in mixed)

    assert_close(result, expected, 1e-12)
    for grad, leaf, other in zip(gradients(result, leaves), leaves, gradients(expected, leaves), strict=True):
        assert grad.dtype == leaf.dtype
        tolerance = 1e-12
        if leaf.dtype == torch.float32:
            tolerance = 1e-6
        assert_close(grad, other, tolerance)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0"),
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"reduction": "max"}, "reduction='max' is not one of 'mean', 'sum', 'none'"),
        ({"linear_weight": torch.zeros(22, 8)}, "table must have a row for each of the 22 tokens"),
        ({"target": torch.full((2, 3), 23)}, "target holds ids outside the vocabulary of 23"),
        ({"target": torch.full((2, 3), -1)}, "Mark positions to ignore with ignore_index=-100"),
    ],
    ids=str,
)
def test_bad_arguments(changes, message):
    hidden, weight, bias, table = make()
    arguments = {"input": hidden, "linear_weight": weight, "table": table, "linear_bias": bias}

    with pytest.raises(ValueError, match=message):
        linear_expected_embedding(**(arguments | changes))


# From hidden states: memory and unwanted gradients


@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_only_gradients_that_are_wanted_are_computed(wanted):
    positions = 32
    vocabulary = 5000
    features = 16
    chunk_size = 50
    tensors = make((positions,), vocabulary, features, 4)
    full = gradients(plain(tensors), tensors[:3])
    leaves = [tensor.detach().requires_grad_(i in wanted) for i, tensor in enumerate(tensors[:3])]
    with Largest(*leaves, tensors[3]) as largest:
        y = embed((*leaves, tensors[3]), chunk_size=chunk_size)
        assert y.requires_grad == bool(wanted)
        if wanted:
            (y * upstream(y)).sum().backward()

    for i, leaf in enumerate(leaves):
        assert (leaf.grad is None) == (i not in wanted)
        if leaf.grad is not None:
            assert_close(leaf.grad, full[i], 1e-5)
    needed = positions * chunk_size
    if 1 in wanted:
        needed = vocabulary * features
    elif 2 in wanted:
        needed = vocabulary
    assert largest.numbers <= max(needed, chunk_size * features)


# From logits


def by_definition(logits, table, temperature=1.0, excluded=()):
    return plain((logits, torch.eye(logits.shape[-1]).to(logits), None, table), temperature, excluded)


@pytest.fixture(params=[2048, 4], ids=["one part", "parts"])
def parts(request, monkeypatch):
    monkeypatch.setattr(expectations, "_TOKENS_PER_CHUNK", request.param)


@pytest.mark.parametrize("case", ["all", "indices"])
@pytest.mark.usefixtures("parts")
def test_softmax_expectation_gradcheck(case):
    """Positions that are not needed may be anything."""
    logits = normal(3, 11, dtype=torch.float64)
    table = normal(11, 3, dtype=torch.float64, seed=1)
    rows = torch.tensor([0, 2])
    options = {}
    if case == "indices":
        options = {"indices": rows}
        logits[1] = torch.nan
    logits.requires_grad_()

    def function(logits):
        y = softmax_expectation(logits, table, 0.7, [2, 10], **options)
        return y if options else y[rows]

    torch.testing.assert_close(function(logits), by_definition(logits[rows], table, 0.7, [2, 10]))
    assert torch.autograd.gradcheck(function, logits)
    (gradient,) = torch.autograd.grad(function(logits).sum(), logits)
    assert not gradient[1].any()


@pytest.mark.parametrize("from_hidden", [False, True])
@pytest.mark.usefixtures("parts")
def test_products_in_bfloat16_as_on_an_accelerator(from_hidden, monkeypatch):
    """Products are computed in bfloat16, all else in float32."""
    monkeypatch.setattr(expectations, "product_dtype", lambda values, dtype: values.dtype)
    hidden = normal(40, 8).bfloat16()
    weight = normal(300, 8, seed=1).bfloat16()
    table = normal(300, 16, seed=2)
    # The logits of such a product are rounded to bfloat16; what follows is compared with float64.
    inputs = [hidden, weight] if from_hidden else [hidden @ weight.T]
    inputs = [values.requires_grad_() for values in inputs]
    result = linear_expected_embedding(*inputs, table) if from_hidden else softmax_expectation(*inputs, table)
    logits = (hidden @ weight.T).detach().double().requires_grad_()
    expected = by_definition(logits, table.double())

    assert result.dtype == torch.float32
    assert 1e-5 < (result - expected).abs().max() < 0.008 * table.abs().max()
    factors = normal(40, 16, seed=3)
    gradients = torch.autograd.grad(result, inputs, factors)
    (into_logits,) = torch.autograd.grad(expected, logits, factors.double())
    exact = [into_logits @ weight.double(), into_logits.T @ hidden.double()] if from_hidden else [into_logits]
    for gradient, of_input in zip(gradients, exact, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient - of_input).norm() < 0.02 * of_input.norm()


def test_denormal_probabilities_are_0():
    """A processor multiplies denormal numbers some 10 times slower."""
    logits = torch.tensor([[0.0, -80.0, -95.0]], requires_grad=True)
    table = torch.tensor([[0.0], [1.0], [1e38]])
    result = softmax_expectation(logits, table)
    (gradient,) = torch.autograd.grad(result.sum(), logits)
    expected = torch.tensor(-80.0).exp()

    torch.testing.assert_close(result, expected.view(1, 1), atol=0, rtol=1e-5)
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, 1.0, 0.0]]) * expected, atol=0, rtol=1e-5)
