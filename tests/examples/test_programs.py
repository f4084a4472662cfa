"""The programs for copying run without a warning, and what they report is BERTScore as bert-score computes it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import bert_score as oracle
import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples import fabric, lightning_metric, mbr_reranking, translation
from examples.docstring_training import load_generator
from examples.docstrings import DocstringPair
from examples.translation_corpus import Collate, make_translations, small_translator

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("error::UserWarning")]


@pytest.fixture(scope="module")
def bert_score_f1(minilm):
    """F1 of candidates and references by bert-score, one number per candidate."""
    scorer = oracle.BERTScorer(model_type=minilm, num_layers=5)
    return lambda candidates, references: scorer.score(list(candidates), list(references))[2]


@pytest.fixture
def watched():
    """A metric that remembers what it was told since its last reset, and what that was."""

    class Watched(BERTScore):
        seen, last = [], []

        def update(self, preds, target, *args, **kwargs):
            self.seen.append((list(preds), list(target), kwargs))
            super().update(preds, target, *args, **kwargs)

        def reset(self):
            super().reset()
            self.last[:], self.seen[:] = self.seen or self.last, []

    return Watched


HOURS = ["twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
BEFORE_THE_HOUR = {"": 0, "half past": 30, "a quarter past": 15, "a quarter to": -15}
BEHIND_THE_HOUR = {"o'clock": 0, "fifteen": 15, "thirty": 30, "forty-five": 45}


def clock(words):
    """Minutes of what an English time of day says, out of twelve hours."""
    before, _, last = words.rpartition(" ")
    if last in BEHIND_THE_HOUR:
        return HOURS.index(before) * 60 + BEHIND_THE_HOUR[last]
    return (HOURS.index(last) * 60 + BEFORE_THE_HOUR[before]) % 720


def test_references_of_a_sentence_say_the_same():
    translations = make_translations(1000)
    assert len({each.source for each in translations}) == 1000
    assert make_translations(3) != make_translations(3, seed=1)
    minutes = set()
    for each in translations:
        first, second = (reference.removesuffix(".").removesuffix(" is cancelled") for reference in each.references)
        day, month, time = re.search(r"day, the (\S+) of (\w+), at (.+)$", first).groups()
        same_month, same_day, same_time = re.search(r"day, (\w+) the (\S+), at (.+)$", second).groups()
        assert (day, month, clock(time)) == (same_day, same_month, clock(same_time))
        minutes.add(clock(time))
    assert len(minutes) == 48


GERMAN_HOURS = ["zwölf", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf"]


def test_german_says_the_time_of_the_references():
    """Half four in German is half past three."""
    shifts = {"halb": -30, "Viertel vor": -15, "Viertel nach": 15}
    words = r"(ein|halb|Viertel vor|Viertel nach|\w+) (\w+)"
    for each in make_translations(1000):
        before, last = re.search(rf", um {words}", each.source).groups()
        if last == "Uhr":
            minutes = GERMAN_HOURS.index("eins" if before == "ein" else before) * 60
        else:
            minutes = GERMAN_HOURS.index(last) * 60 + shifts[before]
        time = re.search(r", at (.+?)(?: is cancelled)?\.$", each.references[0])[1]
        assert clock(time) == minutes % 720


def test_metric_example_scores_with_both_references_and_numbers(watched, bert_score_f1, monkeypatch, capsys):
    monkeypatch.setattr(lightning_metric, "BERTScore", watched)
    figures = lightning_metric.main(["--steps", "40"])
    texts, references, numbers = [], [], []
    for preds, target, options in watched.last:
        texts += preds
        references += target
        numbers += options["indices"].tolist()
    assert numbers == list(range(64))
    assert references == [each.references for each in make_translations(64 + 4032)[:64]]
    expected = bert_score_f1(texts, references).mean().item()
    assert figures["val_bertscore_f1"] == pytest.approx(expected, abs=1e-6)
    assert f"step 40: precision {figures['val_bertscore_precision']:.3f}" in capsys.readouterr().out


def test_translation_example_adds_the_loss_in_the_last_tenth(watched, bert_score_f1, monkeypatch, capsys):
    losses = []

    class WatchedLoss(SoftBERTScoreLoss):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            losses.append(found[0].requires_grad)
            return found

    monkeypatch.setattr(translation, "BERTScore", watched)
    monkeypatch.setattr(translation, "SoftBERTScoreLoss", WatchedLoss)
    history = translation.main(["--steps", "20"])
    assert losses == [True, True]
    assert [row["step"] for row in history] == [4, 8, 12, 16, 20]
    ((texts, references, _),) = watched.last
    expected = bert_score_f1(texts, references).mean().item()
    assert history[-1]["val_bertscore_f1"] == pytest.approx(expected, abs=1e-6)
    assert f"F1 {expected:.3f}, BLEU {history[-1]['val_bleu']:.3f}" in capsys.readouterr().out


def test_loss_of_the_translation_example_sees_all_words_and_nothing_else(encoder):
    class Perfect(nn.Module):
        """Predicts the labels."""

        def forward(self, input_ids, attention_mask, labels):
            logits = 50.0 * nn.functional.one_hot(labels.clamp_min(0), len(tokenizer))
            return SimpleNamespace(loss=torch.tensor(0.0), logits=logits)

    translations = make_translations(300)
    _, tokenizer = small_translator(translations)
    loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=[translations[0].references[0]])
    translator = translation.Translator(Perfect(), tokenizer, loss, 0, MetricCollection({}))
    logged = {}
    translator.log = lambda name, value: logged.setdefault(name, value)
    translator.training_step(Collate(tokenizer)(list(enumerate(translations[:8]))), 0)
    assert logged["hard_f1"].item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_score_as_one(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "examples.ddp", "--steps", "40"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert "37 pairs on 2 processes, [19, 19] of them on each" in done.stdout
    figures = dict(re.findall(r"F1 of (.+): +(\d\.\d{6})", done.stdout))
    scores = {name: float(value) for name, value in figures.items()}
    alone = scores["one process"]
    assert alone > 0.5
    assert scores["the two processes, with the pairs' numbers"] == pytest.approx(alone, abs=2e-6)
    # The pair that DistributedSampler repeats counts twice here.
    assert scores["the two processes, without the pairs' numbers"] != pytest.approx(alone, abs=1e-5)


@pytest.fixture(scope="module")
def generator(minilm, tmp_path_factory):
    """Folder of a small random generator with the encoder's vocabulary."""
    folder = tmp_path_factory.mktemp("generator")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    sizes = {f"{half}_{what}": 2 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 128}
    config = BartConfig(
        vocab_size=len(tokenizer),
        decoder_start_token_id=tokenizer.cls_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        forced_eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
    )
    torch.manual_seed(0)
    BartForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_fabric_example_trains_the_generator_and_not_the_encoder(
    watched, generator, bert_score_f1, monkeypatch, capsys
):
    models, encoders = [], []
    translations = make_translations(48)
    pairs = [DocstringPair(each.references[0], each.references[1], "made.up") for each in translations]

    class Watched(FrozenEncoder):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            encoders.append((self, self.encode([pairs[0].summary]).vectors.clone()))

    class NoLoss(SoftBERTScoreLoss):
        def forward(self, *args, **kwargs):
            loss, parts = super().forward(*args, **kwargs)
            return 0.0 * loss, parts

    def load(name):
        models.append(load_generator(name)[0])
        return models[-1], load_generator(name)[1]

    monkeypatch.setattr(fabric, "collect_pairs", lambda packages: pairs)
    monkeypatch.setattr(fabric, "BERTScore", watched)
    monkeypatch.setattr(fabric, "FrozenEncoder", Watched)
    monkeypatch.setattr(fabric, "load_generator", load)
    figures = fabric.main(["--steps", "2", "--generator", generator])
    ((texts, references, _),) = watched.seen
    assert len(texts) == 16
    assert figures["f1"] == pytest.approx(bert_score_f1(texts, references).mean().item(), abs=1e-6)
    assert f"16 held-out pairs: P {figures['precision']:.3f}" in capsys.readouterr().out
    ((encoder, before),) = encoders
    torch.testing.assert_close(encoder.encode([pairs[0].summary]).vectors, before, rtol=0, atol=0)

    monkeypatch.setattr(fabric, "SoftBERTScoreLoss", NoLoss)
    fabric.main(["--steps", "2", "--generator", generator])
    trained, without = (model.get_output_embeddings().weight for model in models)
    start = load_generator(generator)[0].get_output_embeddings().weight
    assert (without - start).abs().max() > 1e-5
    assert (trained - without).abs().max() > 1e-5


def test_expected_scores_are_those_of_a_plain_loop_and_encode_each_text_once(encoder, bert_score_f1, monkeypatch):
    encoded, encode = [], FrozenEncoder.encode

    def counting(self, texts, device="cpu"):
        encoded.extend(texts)
        return encode(self, texts, device)

    candidates = ["It rains in Berlin.", "It is raining in Berlin.", "Berlin is old.", "It rains in Berlin.", "no"]
    weights = [0.5, 2.0, 1.0, 0.25, 0.1]
    with monkeypatch.context() as patch:
        patch.setattr(FrozenEncoder, "encode", counting)
        found = mbr_reranking.expected_scores(candidates, encoder)
    assert sorted(encoded) == sorted(set(candidates))
    weighted = mbr_reranking.expected_scores(candidates, encoder, torch.tensor(weights))
    n = len(candidates)
    f1 = [[bert_score_f1([a], [b]).item() for b in candidates] for a in candidates]
    for scores, each in ((found, [1.0] * n), (weighted, weights)):
        expected = [
            sum(each[j] * f1[i][j] for j in range(n) if j != i) / sum(each[j] for j in range(n) if j != i)
            for i in range(n)
        ]
        assert scores.tolist() == pytest.approx(expected, abs=1e-5)


def test_reranking_example_reports_the_scores_of_what_it_chose(bert_score_f1, monkeypatch, capsys):
    groups, expected_scores = [], mbr_reranking.expected_scores

    def watched(candidates, encoder):
        groups.append(list(candidates))
        return expected_scores(candidates, encoder)

    monkeypatch.setattr(mbr_reranking, "expected_scores", watched)
    figures = mbr_reranking.main(["--steps", "60", "--inputs", "3", "--candidates", "4"])
    references = [each.references for each in make_translations(2051)[:3]]
    chosen = []
    for group in groups:
        means = [
            bert_score_f1([text] * 3, [[other] for j, other in enumerate(group) if j != i]).mean().item()
            for i, text in enumerate(group)
        ]
        chosen.append(group[means.index(max(means))])
    scores = torch.stack(
        [bert_score_f1(group, [several] * 4) for group, several in zip(groups, references, strict=True)]
    )
    assert figures["chosen"] == pytest.approx(bert_score_f1(chosen, references).mean().item(), abs=1e-6)
    assert figures["random"] == pytest.approx(scores.mean().item(), abs=1e-6)
    assert figures["best"] == pytest.approx(scores.amax(1).mean().item(), abs=1e-6)
    assert f"{figures['chosen']:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize("example", [fabric, lightning_metric, mbr_reranking, translation])
def test_programs_refuse_no_steps(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--steps", "0"])
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err
