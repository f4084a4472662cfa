import numpy as np
import pytest
import torch
from scipy import stats

from bertscore_tm.statistics import paired_bootstrap


def test_agrees_with_scipy():
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(200, generator=generator)
    b = a + 0.02 + 0.1 * torch.randn(200, generator=generator)
    ours = paired_bootstrap(a, b, num_resamples=20_000)
    theirs = stats.bootstrap(
        ((b - a).double().numpy(),), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    )
    assert ours.difference == pytest.approx((b - a).double().mean().item())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=5e-4)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=5e-4)


def test_seeded_and_antisymmetric():
    a, b = torch.rand(50), torch.rand(50)
    first = paired_bootstrap(a, b, seed=3)
    assert first == paired_bootstrap(a, b, seed=3)
    assert first != paired_bootstrap(a, b, seed=4)
    swapped = paired_bootstrap(b, a, seed=3)
    assert (swapped.low, swapped.high) == (pytest.approx(-first.high), pytest.approx(-first.low))


def test_p_value_tells_difference_from_none():
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(300, generator=generator)
    noise = torch.randn(300, generator=generator)
    assert paired_bootstrap(a, a + 0.1 * (noise - noise.mean())).p_value > 0.8
    assert paired_bootstrap(a, a + 0.05 + 0.1 * noise).p_value < 0.01
    assert paired_bootstrap(a, a).p_value == 1


def test_many_texts_are_drawn_in_steps(monkeypatch):
    a, b = torch.rand(40), torch.rand(40)
    monkeypatch.setattr("bertscore_tm.statistics._DRAWS_PER_STEP", 400)
    stepwise = paired_bootstrap(a, b, num_resamples=1001)
    assert stepwise.low < stepwise.difference < stepwise.high


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": torch.rand(3), "b": torch.rand(4)}, "shapes"),
        ({"a": torch.rand(0), "b": torch.rand(0)}, "shapes"),
        ({"a": torch.rand(2, 2), "b": torch.rand(2, 2)}, "shapes"),
        ({"a": torch.rand(3), "b": torch.rand(3), "confidence": 95}, "confidence"),
        ({"a": torch.rand(3), "b": torch.rand(3), "num_resamples": 0}, "num_resamples"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(**arguments)
