"""linear_expected_embedding in training: little memory, only the wanted gradients, checkpointed and compiled."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from bertscore_tm.losses.soft.expectations import linear_expected_embedding
from examples.benchmarks.processes import peak_growth, run_fresh
from tests.support.plain_expected_embedding import assert_close, gradients, make, plain, plain_cross_entropy, upstream

pytestmark = pytest.mark.usefixtures("one_thread")


class Largest(TorchDispatchMode):
    """Keeps how many numbers the largest storage had that an operation made or wrote to, and their shapes."""

    def __init__(self, *known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                storage = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.numbers = max(self.numbers, storage, tensor.numel())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("with_target", [False, True])
def test_no_tensor_of_positions_times_vocabulary(dtype, with_target):
    positions, vocabulary, features, chunk_size = 300, 2000, 16, 100
    hidden, weight, bias, table = make((3, 100), vocabulary, features, 8, dtype)
    target = torch.zeros(3, 100, dtype=torch.long)
    with Largest() as largest:
        y = plain(hidden, weight, bias, table)
        gradients(y, (hidden, weight, bias))
    assert largest.numbers == positions * vocabulary
    with Largest() as largest:
        y = linear_expected_embedding(
            hidden, weight, table, target if with_target else None, linear_bias=bias, chunk_size=chunk_size
        )
        y, losses = (y[0], [y[1]]) if with_target else (y, [])
        gradients(y, (hidden, weight, bias), *losses)
    # Two buffers for a part of the vocabulary, in one storage; the weight's gradient has 32,000 numbers.
    assert largest.numbers == 2 * positions * chunk_size


@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_only_gradients_that_are_wanted_are_computed(wanted):
    positions, vocabulary, features, chunk_size = 32, 5000, 16, 50
    tensors = make((positions,), vocabulary, features, 4)
    names = ("hidden", "weight", "bias")
    full = gradients(plain(*tensors), tensors[:3])
    leaves = [tensor.detach().requires_grad_(i in wanted) for i, tensor in enumerate(tensors[:3])]
    hidden, weight, bias = leaves
    with Largest(*leaves, tensors[3]) as largest:
        y = linear_expected_embedding(hidden, weight, tensors[3], linear_bias=bias, chunk_size=chunk_size)
        assert y.requires_grad == bool(wanted)
        if wanted:
            (y * upstream(y)).sum().backward()
    for i, leaf in enumerate(leaves):
        assert (leaf.grad is None) == (i not in wanted), names[i]
        if leaf.grad is not None:
            assert_close(leaf.grad, full[i], 1e-5)
    expected = vocabulary * features if 1 in wanted else vocabulary if 2 in wanted else 2 * positions * chunk_size
    assert largest.numbers <= max(expected, chunk_size * features)


@pytest.mark.parametrize("used", ["embedding", "cross-entropy"])
def test_one_of_both_results_alone(used):
    hidden, weight, bias, table = make()
    target = torch.full((2, 3), 9)
    leaves = (hidden, weight, bias)
    y, loss = linear_expected_embedding(hidden, weight, table, target, linear_bias=bias, excluded_ids=[1], chunk_size=6)
    if used == "embedding":
        ours, theirs = gradients(y, leaves), gradients(plain(hidden, weight, bias, table, 1.0, [1]), leaves)
    else:
        ours = torch.autograd.grad(loss, leaves)
        theirs = torch.autograd.grad(plain_cross_entropy(hidden, weight, bias, target), leaves)
    for grad, other in zip(ours, theirs, strict=True):
        assert_close(grad, other, 1e-5)


def test_arguments_of_any_layout_are_left_as_they_are():
    hidden, weight, bias, table = make((4, 6))
    views = [hidden.detach()[:, ::2], weight.detach().t().contiguous().t(), bias.detach().flip(0), table.flip(1)]
    before = [view.clone() for view in views]
    leaves = [view.requires_grad_() for view in views[:3]]
    y = linear_expected_embedding(views[0], views[1], views[3], linear_bias=views[2], chunk_size=6)
    expected = plain(*views)
    assert_close(y, expected, 1e-5)
    for grad, other in zip(gradients(y, leaves), gradients(expected, leaves), strict=True):
        assert_close(grad, other, 1e-5)
    for view, copy in zip(views, before, strict=True):
        assert torch.equal(view, copy)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_under_gradient_checkpointing(use_reentrant):
    hidden, weight, bias, table = make()

    def forward(hidden):
        return linear_expected_embedding(hidden.tanh(), weight, table, linear_bias=bias, chunk_size=6)

    leaves = (hidden, weight, bias)
    y, again = forward(hidden), checkpoint(forward, hidden, use_reentrant=use_reentrant)
    expected = gradients(y, leaves)
    (again * upstream(again)).sum().backward()
    for leaf, other in zip(leaves, expected, strict=True):
        assert torch.equal(leaf.grad, other)


def test_under_torch_compile_without_graph_breaks():
    hidden, weight, bias, table = make()
    target = torch.tensor([[3, -100, 2], [22, 1, 9]])
    torch.compiler.reset()

    def both(hidden, weight, bias):
        return linear_expected_embedding(
            hidden, weight, table, target, linear_bias=bias, temperature=0.7, excluded_ids=[0, 22], chunk_size=12
        )

    y, loss = both(hidden, weight, bias)
    compiled, compiled_loss = torch.compile(both, fullgraph=True, backend="aot_eager")(hidden, weight, bias)
    # Compiled code multiplies matrices in its own way.
    assert_close(compiled, y, 1e-6)
    assert_close(compiled_loss, loss, 1e-6)
    leaves = (hidden, weight, bias)
    for grad, other in zip(gradients(compiled, leaves, compiled_loss), gradients(y, leaves, loss), strict=True):
        assert_close(grad, other, 1e-6)


def sum_64_megabytes_three_times():
    for _ in range(3):
        torch.ones(16_000_000).sum()


def test_memory_is_measured_at_its_peak():
    # Freed before the end. Other tests leave memory that is returned meanwhile.
    assert 60e6 < run_fresh(peak_growth, sum_64_megabytes_three_times) < 75e6


def passed(is_plain, with_target, hidden, weight, bias, table):
    """Expected embeddings and gradients, the plain way or in parts of the vocabulary."""
    target = torch.arange(len(hidden))
    if is_plain:
        y = plain(hidden, weight, bias, table)
        losses = [plain_cross_entropy(hidden, weight, bias, target)] if with_target else []
    else:
        found = linear_expected_embedding(hidden, weight, table, target if with_target else None, linear_bias=bias)
        y, losses = (found[0], [found[1]]) if with_target else (found, [])
    return [y.detach(), *gradients(y, (hidden, weight, bias), *losses)]


def peak_beyond_gradient(is_plain, with_target, positions, vocabulary, features):
    # Loads libraries before the measurement.
    passed(is_plain, with_target, *make((8,), 500, features, features))
    tensors = make((positions,), vocabulary, features, features)
    return peak_growth(lambda: passed(is_plain, with_target, *tensors)) - tensors[1].nbytes


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("with_target", [False, True])
def test_memory_stays_below_a_quarter(with_target):
    # Large enough that what libraries allocate by the way, up to 13 MB, is a small part.
    positions, vocabulary, features = sizes = 1024, 30_000, 16
    plainly, in_parts = (run_fresh(peak_beyond_gradient, is_plain, with_target, *sizes) for is_plain in (True, False))
    assert plainly > 2 * positions * vocabulary * 4
    assert in_parts < plainly / 4
    tensors = make((positions,), vocabulary, features, features)
    ours, theirs = (passed(is_plain, with_target, *tensors) for is_plain in (False, True))
    for found, expected in zip(ours, theirs, strict=True):
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
