"""SampleLogger: where the inputs of the shown examples come from."""

import lightning.pytorch as pl
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, Seq2SeqGenerate
from bertscore_tm.callbacks.samples.writers import SampleTable
from tests.support.lightning_modules import chooser, trainer
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer
from tests.support.sample_tables import COUNT, Mixed, inputs_of, run_with, table

pytestmark = pytest.mark.usefixtures("one_thread")


class ReturnsQuestions(Mixed):
    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return {**super().evaluation_step(batch, batch_idx, dataloader_idx), "asked": inputs_of(batch)}

    validation_step = evaluation_step


def test_inputs_from_what_the_step_returns(pairs, encoder, tmp_path):
    module = chooser(pairs, count=COUNT, kind=ReturnsQuestions, val_sizes=(COUNT,))
    run_with(tmp_path, module, encoder, SampleLogger(1, 0, inputs="asked"))
    assert all(row["input"] == f"input {row['example']}" for row in table(tmp_path))


class WithModel(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def validation_step(self, batch, batch_idx):
        pass


def test_hugging_face_generators_provide_inputs(encoder, tmp_path):
    tokenizer = tiny_tokenizer(EVERY_FAMILY["bart"])
    model = randomised(AutoModelForSeq2SeqLM.from_config(tiny_config("bart")))
    texts = ["the cat sat", "it rains", "returns a name", "a b c"]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    data = [{"input_ids": row, "labels": "a cat"} for row in ids]
    callbacks = [
        SampleLogger(1, 0),
        BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(tokenizer, max_new_tokens=3)),
    ]
    run = trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path, "csv"))
    run.validate(WithModel(model), DataLoader(data, batch_size=2), verbose=False)
    rows = table(tmp_path)
    wanted = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [row["input"] for row in rows] == [wanted[int(row["example"])] for row in rows]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            "question",
            r"no inputs='question' in the batch or in the step's outputs, which have the keys \['asked', 'numbers',",
        ),
        ("numbers", "inputs='numbers' must be a list of 3 texts, one per prediction, got 'tensor"),
        (lambda batch: ["one"], "must be a list of 3 texts, one per prediction"),
        (lambda batch: "abc", "must be a list of 3 texts, one per prediction, got 'abc'"),
        (lambda batch: [1, 2, 3], "must be a list of 3 texts, one per prediction"),
    ],
    ids=["no key", "ids", "too few", "a text", "no texts"],
)
def test_unusable_inputs_are_an_error(pairs, encoder, tmp_path, inputs, message):
    class Numbered(ReturnsQuestions):
        def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
            return {**super().evaluation_step(batch, batch_idx, dataloader_idx), "numbers": batch[:, None]}

        validation_step = evaluation_step

    module = chooser(pairs, count=COUNT, kind=Numbered, val_sizes=(COUNT,))
    with pytest.raises(MisconfigurationException, match=message):
        run_with(tmp_path, module, encoder, SampleLogger(inputs=inputs))


def test_tables_without_inputs_have_no_input_column():
    assert "input" not in SampleTable("x", 0, [], {}).columns
