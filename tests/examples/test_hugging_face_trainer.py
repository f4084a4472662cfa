"""The page's metrics of Hugging Face's Trainer: each text meets its own references, in every order and of every set."""

from dataclasses import replace

import pytest
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from tests.support.markdown_blocks import ROOT, blocks

PAGE = ROOT / "examples" / "hugging_face_trainer.md"
VALIDATION = ["a cat sat on the mat", "it rains", "the bank of the river is green", "stocks fell"]
TEST = ["two dogs ran across the wide field", "snow", "the train to the coast is late again today"]


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "page"}
    for block in blocks(PAGE):
        if block.language == "python":
            block.run(names)
    return names


def rows_of(page, texts, first=None):
    """Return a perfect system's examples, which are numbered from the first on if it is given."""
    ids = page["tokenizer"](texts)["input_ids"]
    numbers = [{} if first is None else {"index": first + i} for i in range(len(ids))]
    return [{"input_ids": row, "labels": row, **number} for row, number in zip(ids, numbers, strict=True)]


@pytest.fixture
def make_trainer(page, tmp_path, monkeypatch):
    """Return a function that makes a Trainer of a perfect system: one that writes its inputs, which are the labels."""
    monkeypatch.setattr(page["model"], "generate", lambda input_ids, **options: input_ids)

    def make(trainer_class, compute_metrics, strategy, rows):
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path),
            predict_with_generate=True,
            generation_max_length=16,
            per_device_eval_batch_size=2,
            train_sampling_strategy=strategy,
            remove_unused_columns=False,
            use_cpu=True,
            report_to=[],
        )
        collate = DataCollatorForSeq2Seq(page["tokenizer"])
        return trainer_class(page["model"], arguments, collate, eval_dataset=rows, compute_metrics=compute_metrics)

    return make


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_perfect_system_scores_1(is_indexed, strategy, page, make_trainer):
    page["references"] = {i: [text, "other words"] for i, text in enumerate([*VALIDATION, *TEST])}
    indexed = page["IndexedTrainer"], page["compute_metrics_of_references"]
    kind = indexed if is_indexed else (Seq2SeqTrainer, page["compute_metrics"])
    first = (0, len(VALIDATION)) if is_indexed else (None, None)
    trainer = make_trainer(*kind, strategy, rows_of(page, VALIDATION, first[0]))
    assert trainer.evaluate()["eval_f1"] == 1
    assert trainer.predict(rows_of(page, TEST, first[1])).metrics["test_f1"] == 1


@pytest.mark.usefixtures("padding_is_masked")
def test_the_page_trains_with_the_loss_and_scores(page, bert_score_f1):
    trainer, gradients = page["trainer"], []

    def record(loss, inputs, value):
        if value.requires_grad:
            value.register_hook(lambda gradient: gradients.append(gradient.item()))

    page["bertscore_loss"].register_forward_hook(record)
    trainer.train()
    assert gradients == [1.0] * 3  # epochs of one batch
    prediction = trainer.predict(trainer.eval_dataset)
    texts = page["decode"](prediction.predictions)
    expected = bert_score_f1(texts, page["summaries"]).mean().item()
    assert prediction.metrics["test_f1"] == pytest.approx(expected, abs=1e-4)


def test_the_page_chooses_by_f1_without_a_pole():
    names, (code, *_) = {}, blocks(PAGE)
    replace(code, content=code.content.replace("num_layers=5", "num_layers=6")).run(names)
    texts = ["Construct a Ttk Panedwindow"], ["Return all members of"]  # by the formula 1
    assert names["metric"](*texts)["f1"] < 0


def test_rows_of_another_set_are_refused(page, make_trainer):
    page["references"] = {i: [text] for i, text in enumerate(VALIDATION)}
    kind = page["IndexedTrainer"], page["compute_metrics_of_references"]
    trainer = make_trainer(*kind, "random", rows_of(page, TEST, 0))
    with pytest.raises(ValueError, match="row 0: the labels are 'two dogs ran across the wide field', but"):
        trainer.evaluate()
