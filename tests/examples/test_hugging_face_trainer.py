"""The page's metrics of Hugging Face's Trainer: each text meets its own references, in every order and of every set."""

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5ForConditionalGeneration,
)

from tests.support.markdown_blocks import ROOT, blocks
from tests.support.ranks import on_ranks, results

PAGE = ROOT / "examples" / "docs" / "hugging_face_trainer.md"
VALIDATION = ["a cat sat on the mat", "it rains", "the bank of the river is green", "stocks fell"]
CANDIDATES = ["the cat lay on a rug", "it rains", "a green river bank", "stocks fell sharply", "it snows"]
REFERENCES = [*VALIDATION, "snow"]
TEST = ["two dogs ran across the wide field", "snow", "the train to the coast is late again today"]


def run_page():
    names = {"__name__": "page"}
    for block in blocks(PAGE):
        if block.language == "python":
            block.run(names)
    return names


@pytest.fixture(scope="module")
def page():
    return run_page()


def rows_of(page, texts, first=None, inputs=None):
    """Return the examples of a system that writes its inputs, by default the labels; numbered from the first on."""
    labels = page["tokenizer"](texts)["input_ids"]
    input_ids = page["tokenizer"](inputs or texts)["input_ids"]
    examples = [{"input_ids": row, "labels": label} for row, label in zip(input_ids, labels, strict=True)]
    if first is not None:
        for i, example in enumerate(examples):
            example["index"] = first + i
    return examples


def copy_inputs(input_ids, **options):
    return input_ids


def new_trainer(page, folder, trainer_class, compute_metrics, strategy, rows, **options):
    arguments = Seq2SeqTrainingArguments(
        str(folder),
        predict_with_generate=True,
        generation_max_length=16,
        per_device_eval_batch_size=2,
        train_sampling_strategy=strategy,
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        **options,
    )
    collate = DataCollatorForSeq2Seq(page["tokenizer"])
    return trainer_class(page["model"], arguments, collate, eval_dataset=rows, compute_metrics=compute_metrics)


def kind_of(page, is_indexed):
    """Return the page's trainer and metrics for one reference, or for several."""
    indexed = page["IndexedTrainer"], page["compute_metrics_of_references"]
    return indexed if is_indexed else (page["ScoringTrainer"], page["compute_metrics"])


@pytest.fixture
def make_trainer(page, tmp_path, monkeypatch):
    """Return a function that makes a Trainer of a system that writes its inputs."""
    monkeypatch.setattr(page["model"], "generate", copy_inputs)
    return lambda *args, **options: new_trainer(page, tmp_path, *args, **options)


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_perfect_system_scores_1(is_indexed, strategy, page, make_trainer):
    texts = [*VALIDATION, *TEST]
    page["references"] = {i: [text, "other words"] for i, text in enumerate(texts)}
    first = (None, None)
    if is_indexed:
        first = (0, len(VALIDATION))

    trainer = make_trainer(*kind_of(page, is_indexed), strategy, rows_of(page, VALIDATION, first[0]))

    assert trainer.evaluate()["eval_f1"] == 1
    assert trainer.predict(rows_of(page, TEST, first[1])).metrics["test_f1"] == 1


def test_batches_give_the_score_of_all(page, make_trainer, monkeypatch):
    monkeypatch.setattr(page["model"], "generate", lambda input_ids, **options: input_ids[:, :3])
    rows = rows_of(page, VALIDATION[:3])  # in batches of 2 and 1
    kind = page["ScoringTrainer"]
    of_batches = page["compute_batch_metrics"]
    expected = make_trainer(kind, page["compute_metrics"], "random", rows).evaluate()["eval_f1"]

    trainer = make_trainer(kind, of_batches, "random", rows, batch_eval_metrics=True)

    for _ in range(2):
        assert trainer.evaluate()["eval_f1"] == expected < 0.9


@pytest.mark.usefixtures("padding_is_masked")
def test_the_page_trains_with_the_loss_and_scores(page, bert_score_f1, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = page["trainer"]
    gradients = []

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


def test_the_stand_in_learns_its_summaries(page):
    """A decoder that starts with [CLS], as its labels do, cannot tell the two and often writes empty texts."""
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(page["model"].config)
    tokenizer = page["tokenizer"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    batch = page["trainer"].data_collator(page["dataset"])
    for _ in range(50):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    generated = model.eval().generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=12)

    assert tokenizer.batch_decode(generated, skip_special_tokens=True) == page["summaries"]


def test_the_page_chooses_by_f1_without_a_pole():
    names, (code, *_) = {}, blocks(PAGE)
    replace(code, content=code.content.replace("num_layers=5", "num_layers=6")).run(names)
    texts = ["Construct a Ttk Panedwindow"], ["Return all members of"]  # by the formula 1

    assert names["metric"](*texts)["f1"] < 0


def test_decoder_only_models_answer_the_prompts_alone(page, bert_score_f1, tmp_path, monkeypatch):
    """And what Seq2SeqTrainer generates, with prompts and answers, is scored below 1 for a model without fault."""
    monkeypatch.chdir(tmp_path)
    trainer = page["causal_trainer"]
    answers = page["answers"]

    def f1_by_hand():
        texts = []
        for prompt in answers:
            inputs = page["tokenizer"](prompt, return_tensors="pt", return_token_type_ids=False)
            generated = trainer.model.eval().generate(**inputs, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
            texts.append(page["tokenizer"].decode(generated, skip_special_tokens=True))
        return bert_score_f1(texts, list(answers.values())).mean().item()

    untrained = trainer.evaluate()["eval_f1"]

    assert untrained == pytest.approx(f1_by_hand(), abs=1e-4)
    assert untrained < 0.5
    trainer.train()
    assert trainer.evaluate()["eval_f1"] == 1
    assert f1_by_hand() == pytest.approx(1, abs=1e-4)
    options = {"predict_with_generate": True, "generation_max_length": 40, "report_to": []}
    arguments = Seq2SeqTrainingArguments("leaking", **options)
    leaking = Seq2SeqTrainer(trainer.model, arguments, trainer.data_collator, compute_metrics=page["compute_metrics"])
    prediction = leaking.predict(page["causal_rows"])
    texts = page["decode"](prediction.predictions)
    assert all(
        f"{prompt.lower()} {answer}" in text for text, (prompt, answer) in zip(texts, answers.items(), strict=True)
    )
    assert prediction.metrics["test_f1"] < 0.9


def test_rows_of_another_set_are_refused(page, make_trainer):
    page["references"] = {i: [text] for i, text in enumerate(VALIDATION)}
    trainer = make_trainer(*kind_of(page, True), "random", rows_of(page, TEST, 0))

    with pytest.raises(ValueError, match="row 0: the labels are 'two dogs ran across the wide field', but"):
        trainer.evaluate()


def test_the_loss_is_the_mean_over_rows_of_a_short_last_batch(page, make_trainer):
    rows = rows_of(page, REFERENCES, inputs=CANDIDATES)
    trainer = make_trainer(*kind_of(page, False), "random", rows)
    page["model"].eval()
    batches = [rows[:2], rows[2:4], rows[4:]]
    losses = [page["model"](**trainer.data_collator(list(batch))).loss.item() * len(batch) for batch in batches]

    assert trainer.evaluate()["eval_loss"] == pytest.approx(sum(losses) / 5, abs=1e-5)


def train_and_score(page):
    """Train with the loss, and return scores after the last epoch, texts, and weights before and after."""
    trainer = page["trainer"]
    before = parameters_to_vector(trainer.model.parameters()).tolist()
    trainer.train()
    after = parameters_to_vector(trainer.model.parameters()).tolist()
    texts = page["decode"](trainer.predict(trainer.eval_dataset).predictions)
    return [log["eval_f1"] for log in trainer.state.log_history if "eval_f1" in log][-1], texts, before, after


def score_sets(trainer, test_rows):
    return trainer.evaluate()["eval_f1"], trainer.predict(test_rows).metrics["test_f1"]


def recipes(rank, folder):
    size = str(dist.get_world_size())
    # Without accelerators the Trainer knows of other processes only where it is told to use processors.
    os.environ.update(RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, ACCELERATE_USE_CPU="true")
    os.chdir(folder)
    page = run_page()
    yield "train", lambda: train_and_score(page)
    page["model"].generate = copy_inputs
    page["references"] = dict(enumerate([text] for text in [*REFERENCES, *TEST]))
    for is_indexed in (False, True):
        first = (0, len(REFERENCES)) if is_indexed else (None, None)
        rows = rows_of(page, REFERENCES, first[0], CANDIDATES)
        test_rows = rows_of(page, TEST, first[1], CANDIDATES[:3])
        for strategy in ("random", "group_by_length"):
            trainer = new_trainer(page, folder, *kind_of(page, is_indexed), strategy, rows)
            yield (is_indexed, strategy), lambda trainer=trainer, rows=test_rows: score_sets(trainer, rows)


@pytest.mark.slow
@pytest.mark.distributed
def test_on_two_processes_each_row_counts_once(bert_score_f1, tmp_path):
    validation = bert_score_f1(CANDIDATES, REFERENCES)
    test = bert_score_f1(CANDIDATES[:3], TEST)
    repeated = [*range(5), 0, 1, 2]  # what Seq2SeqTrainer gathers from two batches of two on each process

    assert abs(validation.mean() - validation[repeated].mean()) > 1e-3
    reports = on_ranks(recipes, tmp_path)
    assert len(reports[0]) == 5
    for name in reports[0].keys() - {"train"}:
        for scores in results(reports, name):
            assert scores == pytest.approx((validation.mean().item(), test.mean().item()), abs=1e-4), name
    (f1, texts, before, after), other = results(reports, "train")
    assert (f1, texts, after) == (other[0], other[1], other[3])
    assert before != after
    assert f1 == pytest.approx(bert_score_f1(texts, ["a cat sat on the mat", "it rains"]).mean().item(), abs=1e-4)
