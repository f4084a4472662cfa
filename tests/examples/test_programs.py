"""The programs train with what they show, and the scores they report equal those of bert-score."""

import re
import sys
from importlib import import_module

import pytest
import yaml
from transformers import AutoTokenizer

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import CausalGenerate, Seq2SeqGenerate
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.programs import causal_lm, mbr_reranking
from tests.support.markdown_blocks import ROOT

FOLDER = ROOT / "examples" / "programs"
PAGE = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(
    r"^\| `python -m examples\.programs\.(\w+)\b", PAGE.partition("## Larger programs")[0], re.MULTILINE
)

pytestmark = [
    pytest.mark.usefixtures("padding_is_masked"),
    pytest.mark.filterwarnings(
        "error::UserWarning",
        "ignore::FutureWarning",
        "ignore:.*many workers.*",
        "ignore:.*smaller than the logging interval.*",
        "ignore:.*candidates? scored 0",  # after few steps, summaries may be empty
    ),
]


def summaries(rows):
    return [pair.summary for _, pair in rows]


@pytest.fixture
def watch(monkeypatch):
    """Return a function that calls another one with the result and the arguments of each call of a method."""

    def watch_calls(owner, name, see):
        method = getattr(owner, name)

        def watched(*args, **kwargs):
            result = method(*args, **kwargs)
            see(result, *args, **kwargs)
            return result

        monkeypatch.setattr(owner, name, watched)

    return watch_calls


@pytest.fixture
def gradients(watch):
    """Gradients of the values of the BERTScore loss."""
    values = []

    def see(output, *args, **kwargs):
        output[0].register_hook(lambda gradient: values.append(gradient.item()))

    watch(SoftBERTScoreLoss, "forward", see)
    return values


class Updates:
    """Candidates, references and indices of the metric's updates before its last reset, or since then."""

    def __init__(self):
        self.running = []
        self.ended = []

    def see_update(self, _, metric, preds, target, indices=None):
        self.running.append((list(preds), list(target), indices))

    def see_reset(self, *args):
        if self.running:
            self.ended = self.running
        self.running = []

    def last(self):
        return self.running or self.ended

    def candidates(self):
        return [text for preds, _, _ in self.last() for text in preds]

    def references(self):
        return [text for _, target, _ in self.last() for text in target]

    def indices(self):
        return [i for _, _, indices in self.last() for i in indices.tolist()]


@pytest.fixture
def updates(watch):
    """The updates of the metric in this test."""
    seen = Updates()
    watch(BERTScore, "update", seen.see_update)
    watch(BERTScore, "reset", seen.see_reset)
    return seen


@pytest.fixture
def check_f1(updates, bert_score_f1):
    """Return a function that compares a program's F1 with bert-score's, and its references with those expected."""

    def check(f1, expected_references):
        references = [text[0] if isinstance(text, list) else text for text in updates.references()]
        expected = bert_score_f1(updates.candidates(), references)

        assert references == expected_references
        assert f1 == pytest.approx(expected.mean().item(), abs=1e-6)

    return check


def test_the_page_lists_every_program():
    assert len(PROGRAMS) == 7
    for name in PROGRAMS:
        assert (FOLDER / f"{name}.py").is_file()


def test_metric_program_scores_with_indices(corpus, updates, check_f1, capsys):
    held_out = corpus.validation[:32]

    figures = import_module("examples.programs.lightning_metric").main(["--steps", "2"])

    check_f1(figures["val_bertscore_f1"], summaries(held_out))

    assert updates.indices() == list(range(len(held_out)))
    assert f"step 2: precision {figures['val_bertscore_precision']:.3f}" in capsys.readouterr().out


def test_plain_loop_trains_with_the_loss_and_scores(corpus, gradients, check_f1, monkeypatch, capsys):
    program = import_module("examples.programs.plain_loop")
    load = program.load_generator
    models = []

    def load_generator(pairs):
        model, tokenizer = load(pairs)
        models.extend([model, [parameter.detach().clone() for parameter in model.parameters()]])
        return model, tokenizer

    monkeypatch.setattr(program, "load_generator", load_generator)

    figures = program.main(["--steps", "2"])

    check_f1(figures["f1"], summaries(corpus.validation[:32]))

    assert 0 < figures["teacher_forced_f1"] < 1
    printed = capsys.readouterr().out
    for figure in ("cross_entropy", "teacher_forced_f1", "f1"):
        assert f"{figures[figure]:.3f}" in printed
    # The backward pass of each step reached the BERTScore loss with weight 1.
    assert gradients == [1.0, 1.0]
    model, before = models
    changes = [(now - old).abs().max() for now, old in zip(model.parameters(), before, strict=True)]
    assert max(changes) > 1e-5


def test_loss_program_tests_the_best_checkpoint(corpus, bert_score_f1, gradients, watch, tmp_path):
    tested = []
    watch(Seq2SeqGenerate, "__call__", lambda texts, *_: tested.append(texts))
    options = ["--steps", "4", "--pairs", "4", "--output", str(tmp_path)]

    figures = import_module("examples.programs.lightning_loss").main(options)

    assert gradients == [0.0, 0.25, 0.5, 0.75]
    assert figures["bertscore_weight"] == 0.75
    texts, references = tested[-1]
    expected = bert_score_f1(texts, references).mean().item()
    assert references == summaries(corpus.test[:4])
    assert figures["test_bertscore_f1"] == pytest.approx(expected, abs=1e-6)
    assert len(list(tmp_path.glob("**/*.ckpt"))) == 1
    assert list(tmp_path.glob("**/samples/*.csv"))


def test_causal_program_trains_on_answers(corpus, check_f1, gradients, watch, minilm):
    trained = []
    prompts = []
    watch(SoftBERTScoreLoss, "forward", lambda _, loss, logits, target, **options: trained.append((logits, target)))
    watch(CausalGenerate, "__call__", lambda _, generate, module, batch: prompts.extend(generate.inputs(batch)))
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    held_out = corpus.validation[:16]
    documents = [" ".join(pair.document.split()[:40]) for _, pair in held_out]
    prompt_ids = tokenizer([f"summarize: {document}" for document in documents])["input_ids"]
    answer_ids = tokenizer(summaries(corpus.train), add_special_tokens=False)["input_ids"]
    answers = set(tokenizer.batch_decode(answer_ids))

    figures = causal_lm.main(["--steps", "2"])

    assert gradients == [1.0, 1.0]
    assert len(trained) == 2
    for logits, labels in trained:
        said = {tokenizer.decode(row[row != -100], skip_special_tokens=True) for row in labels}
        assert logits.shape[:2] == labels.shape
        assert said <= answers
    assert prompts == tokenizer.batch_decode(prompt_ids, skip_special_tokens=True)
    check_f1(figures["val_bertscore_f1"], summaries(held_out))


@pytest.mark.slow
@pytest.mark.usefixtures("corpus")
def test_yaml_program_runs_from_its_file(tmp_path, monkeypatch):
    path = FOLDER / "lightning_cli.yaml"
    program = import_module("examples.programs.lightning_cli")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv[:1])  # LightningCLI warns of others
    shorter = ["--trainer.max_steps=2", "--trainer.val_check_interval=1", "--data.held_out=4"]

    trainer = program.main(["fit", "--config", str(path), *shorter, "--trainer.enable_progress_bar=false"]).trainer

    named = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]["callbacks"]
    named_classes = {each["class_path"].split(".")[-1] for each in named}

    assert 0 < trainer.callback_metrics["val_bertscore_f1"] < 1
    assert {type(each).__name__ for each in trainer.callbacks} >= named_classes
    assert len(list(tmp_path.glob("outputs/lightning_cli/**/samples/*.csv"))) == 2
    assert list(tmp_path.glob("outputs/lightning_cli/**/*.ckpt"))


def choose_by_consensus(samples, bert_score_f1):
    """Return the sample with the largest mean F1 against the others."""
    means = []
    for i, text in enumerate(samples):
        others = samples[:i] + samples[i + 1 :]
        means.append(bert_score_f1([text] * len(others), others).mean().item())
    return samples[means.index(max(means))]


def test_reranking_program_reports_the_scores_of_its_choice(corpus, bert_score_f1, watch, capsys):
    calls = []
    watch(Seq2SeqGenerate, "__call__", lambda result, *_: calls.append(result))

    figures = mbr_reranking.main(["--steps", "2", "--inputs", "3", "--candidates", "4"])

    assert f"{figures['consensus, layer 5']:.4f}" in capsys.readouterr().out
    references = summaries(corpus.validation[:3])
    (greedy, targets), (samples, targets_of_samples) = calls
    assert targets == targets_of_samples == references
    assert len(samples) == 12
    chosen = [choose_by_consensus(samples[start : start + 4], bert_score_f1) for start in (0, 4, 8)]
    for name, texts in {"greedy": greedy, "consensus": chosen}.items():
        f1 = bert_score_f1(texts, references).mean().item()
        assert figures[f"{name}, layer 5"] == pytest.approx(f1, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "lightning_cli"])
def test_programs_refuse_zero_steps(name, capsys):
    with pytest.raises(SystemExit):
        import_module(f"examples.programs.{name}").main(["--steps", "0"])

    assert "--steps: must be at least 1, got 0" in capsys.readouterr().err
