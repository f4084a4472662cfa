"""Calls in compiled steps, such as the training and validation steps of a compiled LightningModule."""

import pytest
import torch
from torch import nn

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates, score_matrix
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.losses.sequence.test_risk import REFERENCES, make_risk
from tests.losses.sequence.test_sampling import batch_of, make_model
from tests.support import lightning_runs as runs
from tests.support.models import tiny_model
from tests.support.soft_predictions import labels_of, noise, normal
from tests.support.texts import real_pairs

CANDIDATES, TEXTS = ([" ".join(text.split()[: 3 + 4 * i]) for i, text in enumerate(side)] for side in real_pairs(4))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def new_encoder():
    return FrozenEncoder(*tiny_model("bert"), num_layers=2)


def steps(encoder):
    """What a step may call, by name: each returns a tensor."""
    metric, loss = BERTScore(encoder, reduction="none"), SoftBERTScoreLoss(encoder, reduction="none")
    labels, reward = labels_of(encoder, TEXTS), BERTScoreReward(encoder)
    logits, head = noise(encoder, *labels.shape), nn.Linear(8, encoder.config.vocab_size, bias=False)
    with torch.no_grad():
        head.weight.copy_(normal(*head.weight.shape))
    hidden = normal(*labels.shape, 8)

    def update():
        metric.reset()
        metric.update(CANDIDATES, TEXTS)
        return metric.compute()["f1"]

    return {
        "update": update,
        "forward": lambda: metric(CANDIDATES, TEXTS)["f1"],
        "function": lambda: bert_score(CANDIDATES, TEXTS, encoder)["f1"],
        "ranking": lambda: torch.cat(rank_candidates([CANDIDATES], [TEXTS[0]], encoder).scores),
        "consensus": lambda: torch.cat(rank_candidates([CANDIDATES], encoder=encoder).scores),
        "matrix": lambda: score_matrix(CANDIDATES, TEXTS, encoder)["f1"],
        "reward": lambda: torch.tensor(reward(CANDIDATES, TEXTS)),
        "loss of texts": lambda: loss(logits, TEXTS),
        "loss of ids": lambda: loss(logits, labels),
        "loss of hidden states": lambda: loss.forward_hidden(hidden, head, labels),
    }


NAMES = [*steps(new_encoder())]


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_gets_the_values_of_a_plain_one(name):
    """Compiled before anything is loaded; nothing that it leaves in a cache changes later values."""
    expected, tried = steps(new_encoder())[name](), steps(new_encoder())
    assert expected.unique().numel() > 1
    compiled = torch.compile(tried[name], backend="inductor" if name == "function" else "eager")
    for values in (compiled(), compiled(), tried[name]()):
        torch.testing.assert_close(values, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(tried["function"](), steps(new_encoder())["function"](), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_a_compiled_step_gets_the_risk_of_a_plain_one():
    values = []
    for compile_ in (lambda step: step, lambda step: torch.compile(step, backend="eager")):
        model, risk = make_model("t5"), make_risk(max_new_tokens=3)
        torch.manual_seed(0)
        values.append(compile_(lambda: risk(model, batch_of("right"), REFERENCES))())  # noqa: B023
        values[-1].backward()
        values.append(model.get_output_embeddings().weight.grad)
    torch.testing.assert_close(values[:2], values[2:], atol=1e-6, rtol=1e-5)


class Scoring(runs.Chooser):
    """Scores its texts, and rewards and loses by them, in its own steps."""

    def __init__(self, choices, references):
        super().__init__(choices, references)
        encoder = new_encoder()
        self.metric, self.encoder = BERTScore(encoder), encoder
        self.loss, self.reward, self.values = SoftBERTScoreLoss(encoder), BERTScoreReward(encoder), []
        self.head = nn.Linear(8, encoder.config.vocab_size)

    def training_step(self, batch, batch_idx):
        preds, target = self.choose(batch)
        logits = self.head(self.inputs[batch])[:, None].expand(-1, 3, -1)
        loss = self.loss(logits, target)
        self.values += [*self.reward(preds, target), loss.item()]
        return nn.functional.cross_entropy(self.net(self.inputs[batch]), batch) + loss

    def validation_step(self, batch, batch_idx):
        preds, target = self.choose(batch)
        self.metric.update(preds, target)
        return {"preds": preds, "target": target}

    def on_validation_epoch_end(self):
        self.logged = {name: value.item() for name, value in self.metric.compute().items()}
        self.metric.reset()


def test_a_compiled_module_trains_and_validates_as_a_plain_one(tmp_path):
    found = []
    for compile_ in (lambda module: module, lambda module: torch.compile(module, backend="eager")):
        torch.compiler.reset()
        candidates, references = real_pairs(runs.COUNT)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = Scoring(candidates, references)
            callback = BERTScoreCallback(BERTScore(new_encoder()))
            trainer = runs.trainer(tmp_path, [callback], max_epochs=2)
            trainer.fit(compile_(module))
        logged = [module.logged, dict(trainer.callback_metrics)]
        (validated,) = trainer.validate(compile_(module), verbose=False)
        found.append([*logged, validated, module.values])
    # Adam enlarges rounding.
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    assert found[0][0]["f1"] == pytest.approx(float(found[0][1]["val_bertscore_f1"]), abs=1e-6)
