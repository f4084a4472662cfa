"""The programs train with what they show, and the scores they report equal those of bert-score."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn
from torchmetrics import MetricCollection
from transformers import AutoTokenizer

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import CausalGenerate, Seq2SeqGenerate
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from examples import best_of_n, causal_lm, mbr_reranking, translation
from examples import hugging_face_trainer as trainer_program
from tests.support.markdown_blocks import ROOT, blocks

FOLDER = ROOT / "examples"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^\| `python -m examples\.(\w+)\b", PAGE.partition("## Larger programs")[0], re.MULTILINE)

pytestmark = [
    pytest.mark.usefixtures("one_thread", "padding_is_masked"),
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
def recording(monkeypatch):
    """Record the arguments of a program's metric, those before the last reset in ``last``."""

    class Recording(BERTScore):
        seen, last = [], []

        def update(self, preds, target, *args, **kwargs):
            self.seen.append((list(preds), list(target), kwargs))
            super().update(preds, target, *args, **kwargs)

        def reset(self):
            super().reset()
            self.last[:], self.seen[:] = self.seen or self.last, []

        @classmethod
        def texts(cls):
            """All candidates and references before the last reset, single references without their list."""
            updates = cls.seen or cls.last
            references = [reference for _, target, _ in updates for reference in target]
            references = [r[0] if isinstance(r, list) and len(r) == 1 else r for r in references]
            return [text for preds, _, _ in updates for text in preds], references

    return Recording


@pytest.fixture
def check_f1(recording, bert_score_f1):
    """Return a function that compares a program's F1 with bert-score's, and its references with those expected."""

    def check(f1, expected_references):
        texts, references = recording.texts()
        assert references == expected_references
        assert f1 == pytest.approx(bert_score_f1(texts, references).mean().item(), abs=1e-6)

    return check


@pytest.fixture
def gradients(monkeypatch):
    """Return a function that makes a program's BERTScore loss append the gradients of its value to a list."""

    def record(program):
        values = []

        class Recorded(SoftBERTScoreLoss):
            def forward(self, *args, **kwargs):
                result = super().forward(*args, **kwargs)
                loss = result[0] if isinstance(result, tuple) else result
                if loss.requires_grad:
                    loss.register_hook(lambda gradient: values.append(gradient.item()))
                return result

        monkeypatch.setattr(program, "SoftBERTScoreLoss", Recorded)
        return values

    return record


def test_the_page_lists_the_programs_which_are_short():
    assert len(PROGRAMS) == 14
    for name in PROGRAMS:
        assert len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 150, name


def test_metric_program_scores_with_indices(corpus, recording, check_f1, monkeypatch, capsys):
    program = import_module("examples.lightning_metric")
    monkeypatch.setattr(program, "BERTScore", recording)
    figures = program.main(["--steps", "2"])
    check_f1(figures["val_bertscore_f1"], summaries(corpus.validation[:32]))
    assert [i for _, _, options in recording.last for i in options["indices"].tolist()] == list(range(32))
    assert f"step 2: precision {figures['val_bertscore_precision']:.3f}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lightning_loss", "plain_loop", "fabric"])
def test_loss_programs_train_with_the_loss_and_score(name, corpus, recording, gradients, check_f1, monkeypatch, capsys):
    program, models = import_module(f"examples.{name}"), []
    recorded, load = gradients(program), program.load_generator

    def load_generator(pairs):
        model, tokenizer = load(pairs)
        models.extend([model, [parameter.detach().clone() for parameter in model.parameters()]])
        return model, tokenizer

    monkeypatch.setattr(program, "BERTScore", recording)
    monkeypatch.setattr(program, "load_generator", load_generator)
    figures = program.main(["--steps", "2"])
    f1 = "val_bertscore_f1" if name == "lightning_loss" else "f1"
    check_f1(figures[f1], summaries(corpus.validation[:32]))
    assert 0 < figures["teacher_forced_f1"] < 1
    assert figures["cross_entropy"] > 0
    printed = capsys.readouterr().out
    digits = 4 if name == "lightning_loss" else 3
    assert all(f"{figures[figure]:.{digits}f}" in printed for figure in ("cross_entropy", "teacher_forced_f1", f1))
    # The backward pass of each step reached the BERTScore loss with weight 1.
    assert recorded == [1.0, 1.0]
    assert any((a - b).abs().max() > 1e-5 for a, b in zip(models[0].parameters(), models[1], strict=True))


def test_trainer_program_trains_with_the_loss_and_scores(
    corpus, recording, gradients, check_f1, minilm, monkeypatch, tmp_path
):
    recorded, chosen_by = gradients(trainer_program), []
    select = BERTScore.for_selection
    monkeypatch.setattr(recording, "for_selection", lambda self: chosen_by.append(select(self)) or chosen_by[0])
    monkeypatch.setattr(trainer_program, "BERTScore", recording)
    figures = trainer_program.main(["--steps", "2", "--output", str(tmp_path)])
    references = recording.texts()[1]
    check_f1(figures["f1"], references)
    # References are decoded labels, with at most as many tokens.
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    rows, expected = (tokenizer(texts)["input_ids"] for texts in (references, summaries(corpus.validation[:32])))
    assert all(row[:-1] == other[: len(row) - 1] for row, other in zip(rows, expected, strict=True))
    assert sum(map(list.__eq__, rows, expected)) > 24
    assert recorded == [1.0, 1.0]
    assert len(chosen_by) == 1
    assert list(tmp_path.glob("checkpoint-*"))


def test_trainer_page_chooses_by_f1_without_a_pole():
    names, (code, *_) = {}, blocks(FOLDER / "hugging_face_trainer.md")
    replace(code, content=code.content.replace("num_layers=5", "num_layers=6")).run(names)
    texts = ["Construct a Ttk Panedwindow"], ["Return all members of"]  # by the formula 1
    assert names["metric"](*texts)["f1"] < 0


def test_callbacks_program_stops_logs_and_tests_the_best_checkpoint(corpus, bert_score_f1, monkeypatch, tmp_path):
    program, tested = import_module("examples.summarize_docstrings"), []

    class Recording(Seq2SeqGenerate):
        def __call__(self, pl_module, batch):
            texts, references = super().__call__(pl_module, batch)
            tested.append((texts, references))
            return texts, references

    monkeypatch.setattr(program, "Seq2SeqGenerate", Recording)
    figures = program.main(["--steps", "5", "--pairs", "4", "--output", str(tmp_path)])
    texts, references = tested[-1]
    assert references == summaries(corpus.test[:4])
    assert figures["test_bertscore_f1"] == pytest.approx(bert_score_f1(texts, references).mean().item(), abs=1e-6)
    assert 0 < figures["bertscore_weight"] <= 1
    assert len(list(tmp_path.glob("**/*.ckpt"))) == 1
    assert list(tmp_path.glob("**/samples/*.csv"))


def test_causal_program_trains_on_answers_and_generates_from_prompts(corpus, recording, check_f1, minilm, monkeypatch):
    trained, prompts = [], []

    class Recorded(SoftBERTScoreLoss):
        def forward(self, logits, target, *args, **kwargs):
            loss, parts = super().forward(logits, target, *args, **kwargs)
            loss.register_hook(lambda gradient: trained.append((logits.shape[:2], target, gradient.item())))
            return loss, parts

    class RecordedGenerate(CausalGenerate):
        def __call__(self, pl_module, batch):
            prompts.extend(self.inputs(batch))
            return super().__call__(pl_module, batch)

    monkeypatch.setattr(causal_lm, "BERTScore", recording)
    monkeypatch.setattr(causal_lm, "SoftBERTScoreLoss", Recorded)
    monkeypatch.setattr(causal_lm, "CausalGenerate", RecordedGenerate)
    figures = causal_lm.main(["--steps", "2"])
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    rows = tokenizer(summaries(corpus.train), add_special_tokens=False)["input_ids"]
    answers = set(tokenizer.batch_decode(rows))
    for shape, labels, gradient in trained:
        assert shape == labels.shape
        assert {tokenizer.decode(row[row != -100], skip_special_tokens=True) for row in labels} <= answers
        assert gradient == 1.0
    assert len(trained) == 2
    rows = tokenizer([f"summarize: {' '.join(pair.document.split()[:40])}" for _, pair in corpus.validation[:16]])
    assert prompts == tokenizer.batch_decode(rows["input_ids"], skip_special_tokens=True)
    check_f1(figures["val_bertscore_f1"], summaries(corpus.validation[:16]))


def test_translation_program_adds_the_loss_in_the_last_tenth(recording, gradients, check_f1, monkeypatch, capsys):
    recorded = gradients(translation)
    monkeypatch.setattr(translation, "BERTScore", recording)
    history = translation.main(["--steps", "10"])
    assert recorded == [1.0]
    assert [row["step"] for row in history] == [2, 4, 6, 8, 10]
    translations, f1 = translation.make_translations(), history[-1]["val_bertscore_f1"]
    check_f1(f1, [references for _, references in translations[:32]])
    assert len({source for source, _ in translations}) == len(translations) == 960
    assert all(first != second for _, (first, second) in translations)
    assert f"val_bertscore_f1 {f1:.3f}, val_bleu {history[-1]['val_bleu']:.3f}" in capsys.readouterr().out


def test_loss_of_the_translation_program_covers_all_words_and_nothing_else(encoder):
    translations = translation.make_translations()[:300]
    tokenizer = translation.train_tokenizer(
        [text for source, references in translations for text in (source, *references)]
    )

    class Perfect(nn.Module):
        """Predicts the labels."""

        def forward(self, input_ids, attention_mask, labels):
            logits = 50.0 * nn.functional.one_hot(labels.clamp_min(0), len(tokenizer))
            return SimpleNamespace(loss=torch.tensor(0.0), logits=logits)

    texts = [translations[0][1][0]]
    loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, matching_temperature=0.01, fidelity_texts=texts)
    translator = translation.Translator(Perfect(), tokenizer, loss, 0, MetricCollection({}))
    value = translator.training_step(translation.collate(tokenizer, translations[:8]), 0)
    assert value.item() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.slow
def test_yaml_program_runs_from_its_file(corpus, tmp_path, monkeypatch):
    path, program = FOLDER / "lightning_cli.yaml", import_module("examples.lightning_cli")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv[:1])  # LightningCLI warns of others
    shorter = ["--trainer.max_steps=4", "--trainer.val_check_interval=2", "--data.held_out=4"]
    trainer = program.main(["fit", "--config", str(path), *shorter, "--trainer.enable_progress_bar=false"]).trainer
    assert 0 < trainer.callback_metrics["val_bertscore_f1"] < 1
    named = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]["callbacks"]
    assert {type(each).__name__ for each in trainer.callbacks} >= {each["class_path"].split(".")[-1] for each in named}
    assert len(list(tmp_path.glob("outputs/lightning_cli/**/samples/*.csv"))) == 2
    assert list(tmp_path.glob("outputs/lightning_cli/**/*.ckpt"))


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_score_as_one_process(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "examples.ddp", "--steps", "8"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert "37 pairs on 2 ranks, [19, 19] of them on each" in done.stdout
    figures = {name: float(value) for name, value in re.findall(r"F1 of (.+): +(\d\.\d{6})", done.stdout)}
    alone = figures["one process"]
    assert alone > 0.2
    assert figures["two ranks, with indices"] == pytest.approx(alone, abs=2e-6)
    # The pair that DistributedSampler repeats counts twice here.
    assert figures["two ranks, without indices"] != pytest.approx(alone, abs=1e-5)


def test_reranking_program_reports_the_scores_of_its_choice(corpus, bert_score_f1, monkeypatch, capsys):
    calls, groups = {}, []

    class Recording(Seq2SeqGenerate):
        def __call__(self, pl_module, batch):
            calls[self.num_samples] = super().__call__(pl_module, batch)
            return calls[self.num_samples]

        def _generate(self, model, batch, options):
            texts = super()._generate(model, batch, options)
            groups.extend(texts[start : start + self.num_samples] for start in range(0, len(texts), self.num_samples))
            return texts

    monkeypatch.setattr(mbr_reranking, "Seq2SeqGenerate", Recording)
    figures = mbr_reranking.main(["--steps", "2", "--inputs", "3", "--candidates", "4"])
    assert f"{figures['consensus, layer 5']:.4f}" in capsys.readouterr().out
    references = summaries(corpus.validation[:3])
    chosen = []
    for group in groups[3:]:
        means = [
            bert_score_f1([text] * 3, [[other] for j, other in enumerate(group) if j != i]).mean().item()
            for i, text in enumerate(group)
        ]
        chosen.append(group[means.index(max(means))])
    assert calls == {1: ([text for (text,) in groups[:3]], references), 4: (chosen, references)}
    for name, (texts, _) in {"greedy": calls[1], "consensus": calls[4]}.items():
        f1 = bert_score_f1(texts, references).mean().item()
        assert figures[f"{name}, layer 5"] == pytest.approx(f1, abs=1e-6)


def test_best_of_n_replaces_only_what_a_sample_improves(corpus, encoder, bert_score_f1):
    rows = corpus.train[:3]
    references = summaries(rows)
    greedy = [[references[0]], ["A gate."], [references[1]]]
    samples = [["A gate.", "Two boys."], ["Two boys.", references[1]], [references[2], references[2]]]
    chosen = best_of_n.choose(rows, greedy, samples, encoder)
    assert summaries(chosen) == references
    assert [new == old for new, old in zip(chosen, rows, strict=True)] == [True] * 3
    worse = [["A gate."], ["A gate."], [references[2]]]
    others = [["Two boys.", "The shop opens."], ["A gate.", "A gate."], ["A gate.", "The shop opens."]]
    best = [
        max([*first, *rest], key=lambda text: bert_score_f1([text], [reference])[0].item())
        for first, rest, reference in zip(worse, others, references, strict=True)
    ]
    chosen = best_of_n.choose(rows, worse, others, encoder)
    expected = [
        reference if text == first else text for reference, text, (first,) in zip(references, best, worse, strict=True)
    ]
    assert summaries(chosen) == expected
    assert [index for index, _ in chosen] == [0, 1, 2]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("lightning_cli", "trl_grpo", "demo")])
def test_programs_refuse_zero_steps(name, capsys):
    with pytest.raises(SystemExit):
        import_module(f"examples.{name}").main(["--steps", "0"])
    assert "--steps: must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("trl") is None, reason='requires TRL: pip install "bertscore-tm[trl]"')
def test_trl_program_rewards_completions_by_bertscore(monkeypatch, capsys, bert_score_f1):
    program, calls = import_module("examples.trl_grpo"), []

    class Recording(BERTScoreReward):
        def __call__(self, completions, references=None, **columns):
            calls.append((completions, references))
            return super().__call__(completions, references, **columns)

    monkeypatch.setattr(program, "BERTScoreReward", Recording)
    rewards = program.main(["--steps", "2"])
    assert len(rewards) == len(calls) == 2
    for reward, (completions, references) in zip(rewards, calls, strict=True):
        assert len(completions) == 16
        assert all(pair in [each for _, each in program.make_translations()] for pair in references)
        of_references = [bert_score_f1(completions, list(each)).mean() for each in zip(*references, strict=True)]
        assert reward == pytest.approx(torch.stack(of_references).mean().item(), abs=1e-4)
    assert f"mean reward of the last 2 steps:  {sum(rewards) / 2:.4f}" in capsys.readouterr().out
