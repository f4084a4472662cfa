"""What the progress bar shows while texts are generated and scored."""

import io

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, StoppingCriteria

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, Seq2SeqGenerate, progress
from tests.support.lightning_modules import Silent, chooser, generate, loader, trainer
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


class WithModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = randomised(AutoModelForSeq2SeqLM.from_config(tiny_config("bart")))
        self.model.generation_config.eos_token_id = None  # or it ends at once
        self.model.generation_config.forced_eos_token_id = None

    def training_step(self, batch, batch_idx):
        return sum(parameter.sum() for parameter in self.parameters()) * 0.0

    def validation_step(self, batch, batch_idx):
        pass

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


@pytest.fixture
def tokenizer():
    return tiny_tokenizer(EVERY_FAMILY["bart"])


@pytest.fixture
def data(tokenizer):
    ids = tokenizer(["the cat sat", "it rains", "a name"], padding=True, return_tensors="pt")["input_ids"]
    return DataLoader([{"input_ids": row, "labels": "a cat"} for row in ids], batch_size=2)


class Clock:
    """Goes two seconds on whenever it is read."""

    def __init__(self, step=2.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def shown_by_tqdm(monkeypatch, tmp_path, data, tokenizer, encoder, call, **arguments):
    said, bars = [], TQDMProgressBar()
    callback = BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(tokenizer, max_new_tokens=6, do_sample=False))
    run = trainer(tmp_path, [callback, bars], **{"enable_progress_bar": True, "max_epochs": 1} | arguments)
    keep = progress._TQDMBar.say

    def watched(self, text):
        keep(self, text)
        said.append((self._bar.desc, self._bar.n, text, self._bar.postfix))

    monkeypatch.setattr(progress._TQDMBar, "say", watched)
    loaders = (data, data) if call == "fit" else (data,)
    getattr(run, call)(WithModel(), *loaders, **({} if call == "fit" else {"verbose": False}))
    return said


@pytest.mark.parametrize("call", ["fit", "validate", "test"])
def test_a_long_batch_shows_its_tokens(monkeypatch, tmp_path, data, tokenizer, encoder, call):
    monkeypatch.setattr(progress, "monotonic", Clock())
    said = shown_by_tqdm(monkeypatch, tmp_path, data, tokenizer, encoder, call)
    name = "Testing" if call == "test" else "Validation"
    # The third reading behind the start is the first after five seconds.
    tokens = [f"generating, token {number} of 6" for number in (3, 4, 5, 6)]
    assert said == [(f"{name} DataLoader 0: ", batch, text, text) for batch in (0, 1) for text in [*tokens, ""]]


def test_the_sanity_check_shows_them_too(monkeypatch, tmp_path, data, tokenizer, encoder):
    monkeypatch.setattr(progress, "monotonic", Clock())
    said = shown_by_tqdm(monkeypatch, tmp_path, data, tokenizer, encoder, "fit", num_sanity_val_steps=1)
    assert len(said) == 3 * 5
    assert said[0][0].startswith("Sanity")


def test_a_short_batch_shows_nothing(monkeypatch, tmp_path, data, tokenizer, encoder):
    monkeypatch.setattr(progress, "monotonic", Clock(0.1))
    assert shown_by_tqdm(monkeypatch, tmp_path, data, tokenizer, encoder, "validate") == []


def test_rich_bars_get_their_description_back(monkeypatch, tmp_path, data, tokenizer, encoder):
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "monotonic", Clock())
    found = []
    keep = progress._RichBar.say

    def watched(self, text):
        keep(self, text)
        found.append(self._task.description)

    monkeypatch.setattr(progress._RichBar, "say", watched)
    bars = RichProgressBar(console_kwargs={"file": io.StringIO(), "force_terminal": True})
    callback = BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(tokenizer, max_new_tokens=4))
    run = trainer(tmp_path, [callback, bars], enable_progress_bar=True)
    run.validate(WithModel(), data, verbose=False)
    before = found[2]
    assert "Validation" in before
    assert found == [f"{before} (generating, token {number} of 4)" for number in (3, 4)] * 1 + [before] + [
        f"{before} (generating, token {number} of 4)" for number in (3, 4)
    ] + [before]


def test_the_texts_and_the_users_criteria_are_the_same(data, tokenizer):
    class AfterThree(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] > 3)

    module, batch = WithModel(), next(iter(data))
    plain = module.model.generate(
        input_ids=batch["input_ids"], max_new_tokens=9, do_sample=False, stopping_criteria=[AfterThree()]
    )
    ours = Seq2SeqGenerate(tokenizer, max_new_tokens=9, do_sample=False, stopping_criteria=[AfterThree()])
    for _ in range(2):  # the criteria do not pile up
        assert ours(module, batch)[0] == tokenizer.batch_decode(plain, skip_special_tokens=True)
    assert len(ours.generate_kwargs["stopping_criteria"]) == 1


def test_a_batch_counts_when_it_is_scored_and_the_bar_shows_f1(pairs, encoder, tmp_path):
    seen, bars = [], TQDMProgressBar()

    def watched(pl_module, batch):
        seen.append((bars.val_progress_bar.n, bars.val_progress_bar.total))
        return generate(pl_module, batch)

    callback = BERTScoreCallback(BERTScore(encoder), watched)
    run = trainer(tmp_path, [callback, bars], enable_progress_bar=True, max_epochs=1)
    run.fit(chooser(pairs, kind=Silent), loader(2), loader(7))
    assert seen == [(0, 3), (1, 3), (2, 3)]
    shown = bars.get_metrics(run, run.lightning_module)
    assert shown["val_bertscore_f1"] == pytest.approx(run.callback_metrics["val_bertscore_f1"].item(), abs=1e-6)
    assert "val_bertscore_precision" not in shown
