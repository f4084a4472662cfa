"""``plot`` of the metric."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.pictures import no_overlap, text_labels

pytestmark = pytest.mark.usefixtures("no_open_figures")


def lines_by_label(ax):
    return {line.get_label(): torch.as_tensor(np.asarray(line.get_ydata(), dtype=float)) for line in ax.lines}


@pytest.mark.parametrize("kind", ["mean", "none", "all layers"])
def test_metric_plot_of_now(encoder, minilm, pairs, kind):
    if kind == "all layers":
        encoder = FrozenEncoder(minilm, all_layers=True)
    reduction = "none" if kind == "none" else "mean"
    metric = BERTScore(encoder, reduction=reduction)
    metric.update(pairs[0][:5], pairs[1][:5])

    figure, ax = metric.plot()

    plt.close(figure)
    assert isinstance(figure, plt.Figure)
    lines = lines_by_label(ax)
    scores = metric.compute()
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert list(lines) == list(scores) == legend
    for name, values in lines.items():
        torch.testing.assert_close(values.float(), scores[name].reshape(-1))
    low, high = ax.get_ylim()
    for score in scores.values():
        assert low < score.min() <= score.max() < high
    assert (ax.get_xlabel() == "layer") == (kind == "all layers")


def test_metric_plot_of_several_values(encoder, pairs):
    metric = BERTScore(encoder)
    steps = [metric(pairs[0][i : i + 3], pairs[1][i : i + 3]) for i in range(0, 12, 3)]
    axes = Figure().subplots()

    _, several = metric.plot(steps, ax=axes)
    figure, ax = metric.plot(steps[1])

    plt.close(figure)
    assert several is axes
    for name, values in lines_by_label(axes).items():
        torch.testing.assert_close(values.float(), torch.stack([step[name] for step in steps]))
    assert all(tick == int(tick) for tick in axes.get_xticks())
    assert lines_by_label(ax)["f1"].item() == pytest.approx(steps[1]["f1"].item())


def test_metric_plot_of_many_pairs(encoder, pairs, table):
    metric = BERTScore(encoder, reduction="none", rescale=table)
    metric.update(pairs[0][:60], pairs[1][60:120])
    axes = Figure().subplots()

    figure, ax = metric.plot(ax=axes)

    assert figure is axes.figure
    assert ax is axes
    lowest = min(score.min() for score in metric.compute().values())
    assert axes.get_ylim()[0] < lowest < 0
    assert axes.get_xlabel() == "pair"
    figure.canvas.draw()
    assert no_overlap(text_labels(axes.xaxis))
