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


def cut(texts):
    """Cut texts to different lengths."""
    return [" ".join(text.split()[: 3 + 4 * i]) for i, text in enumerate(texts)]


CANDIDATES, TEXTS = map(cut, real_pairs(4))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def new_encoder():
    # One layer is enough, because tracing takes most of the time.
    return FrozenEncoder(*tiny_model("bert"), num_layers=1)


def steps(encoder):
    """What a step may call, by name: each returns a tensor."""
    metric = BERTScore(encoder, reduction="none")
    loss = SoftBERTScoreLoss(encoder, reduction="none")
    reward = BERTScoreReward(encoder)
    labels = labels_of(encoder, TEXTS)
    logits = noise(encoder, *labels.shape)
    head = nn.Linear(8, encoder.config.vocab_size, bias=False)
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
    plain = steps(new_encoder())
    tried = steps(new_encoder())
    expected = plain[name]()
    # The default backend generates code, once for all steps because it takes seconds.
    backend = "inductor" if name == "function" else "eager"
    compiled = torch.compile(tried[name], backend=backend)

    results = [compiled(), compiled(), tried[name]()]

    assert expected.unique().numel() > 1
    for values in results:
        torch.testing.assert_close(values, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(tried["function"](), plain["function"](), atol=1e-6, rtol=0)


def risk_and_gradient(compile_step):
    """Return the risk of a generator's samples and the gradient of its output layer."""
    model, risk = make_model("gpt2"), make_risk(max_new_tokens=3)
    step = compile_step(lambda: risk(model, batch_of("left"), REFERENCES))
    torch.manual_seed(0)
    value = step()
    value.backward()
    return value.detach(), model.get_output_embeddings().weight.grad


def compile_eagerly(function):
    """Trace a function or module without generating code for it, which takes longer."""
    return torch.compile(function, backend="eager")


def keep(function):
    """Return a function or module as it is."""
    return function


@pytest.mark.slow
def test_a_compiled_step_gets_the_risk_of_a_plain_one():
    expected = risk_and_gradient(keep)

    found = risk_and_gradient(compile_eagerly)

    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


class Scoring(runs.Chooser):
    """Scores its texts, and rewards and loses by them, in its own steps."""

    def __init__(self, choices, references):
        super().__init__(choices, references)
        self.encoder = new_encoder()
        self.metric = BERTScore(self.encoder)
        self.loss = SoftBERTScoreLoss(self.encoder)
        self.reward = BERTScoreReward(self.encoder)
        self.head = nn.Linear(8, self.encoder.config.vocab_size)
        self.values = []

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


def train_and_validate(compile_module, folder):
    """Return what a module and a callback log in training and in a validation after it, and the module's values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Scoring(*real_pairs(runs.COUNT, words=6))
        callback = BERTScoreCallback(BERTScore(new_encoder()))
        trainer = runs.trainer(folder, [callback], max_epochs=1, limit_train_batches=2, limit_val_batches=2)
        trainer.fit(compile_module(module))
    logged = dict(trainer.callback_metrics)
    (validated,) = trainer.validate(compile_module(module), verbose=False)
    return {"module": module.logged, "callback": logged, "validation": validated, "values": module.values}


# Lightning's hooks read the stack, which cannot be traced.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin `sys._getframe:UserWarning")
def test_a_compiled_module_trains_and_validates_as_a_plain_one(tmp_path):
    expected = train_and_validate(keep, tmp_path)

    found = train_and_validate(compile_eagerly, tmp_path)

    # Adam enlarges rounding.
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert found["module"]["f1"] == pytest.approx(float(found["callback"]["val_bertscore_f1"]), abs=1e-6)
