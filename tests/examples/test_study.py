"""The study: its texts, its generator, its rules and arms, its tables, and that a stopped study resumes."""

import copy
import gzip
import json
import random
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from bertscore_tm.statistics import holm
from examples.programs.docstrings import Corpus, DocstringPair, load_generator
from examples.research.study import __main__ as command
from examples.research.study import rules, training
from examples.research.study.manual_pages import collect_pages, read_page
from examples.research.study.results import compare_rules, format_table, summarize_rules, tables
from examples.research.study.rules import BASELINE, BEST, LARGEST_F1, LAST, apply_rules
from examples.research.study.training import ARMS, Generator, make_risk, measure
from tests.support.lightning_runs import Logs, trainer
from tests.support.markdown_blocks import ROOT
from tests.support.texts import real_pairs

pytestmark = pytest.mark.nightly

STUDY = ROOT / "examples" / "research" / "study"

MAN = r"""'\" t
.TH "COUNT\-WORDS" 1
.SH "NAME"
count\-words, cw \- count the words of \fBseveral\fR files
.SH SYNOPSIS
.B count\-words
[\fIFILE\fR]...
.SH DESCRIPTION
.\" a remark
.B count\-words
reads each \fIFILE\fP and prints the number of its words.
It doesn\(aqt read folders; see
.BR wc (1)
for those.
.nf
count-words a.txt
.fi
.TP
\fB\-x\fR
print numbers in hexadecimal
.SH OPTIONS
None of this belongs to the description.
"""
MDOC = """.Dd May 1, 2020
.Sh NAME
.Nm sortlines ,
.Nm sl
.Nd sort the lines of a file
.Sh DESCRIPTION
The
.Nm sortlines
utility reads a file and writes its lines in ascending order to the standard output.
"""


def test_manual_pages_are_read_in_both_macro_packages(tmp_path):
    (tmp_path / "cw.1").write_text(MAN, encoding="utf-8")
    (tmp_path / "sl.1.gz").write_bytes(gzip.compress(MDOC.encode()))
    page = read_page(tmp_path / "cw.1")

    assert page.summary == "count the words of several files"
    assert page.document == (
        "count-words: count-words reads each FILE and prints the number of its words. It doesn't read folders; see "
        "wc(1) for those. print numbers in hexadecimal"
    )
    assert page.module == "count"
    page = read_page(tmp_path / "sl.1.gz")
    assert page.summary == "sort the lines of a file"
    assert page.document.startswith("sortlines: The sortlines utility reads a file and writes its lines in ascending")


@pytest.mark.parametrize(
    "content", [b"", b".so man1/other.1\n", b"\xff\xfe", MAN.replace("\\-", "").encode(), b".SH NAME\na \\- b c d\n"]
)
def test_pages_without_a_summary_or_prose_are_left_out(tmp_path, content):
    (tmp_path / "page.1").write_bytes(content)

    assert read_page(tmp_path / "page.1") is None
    (tmp_path / "page.1.gz").write_bytes(gzip.compress(content)[:-4])
    assert read_page(tmp_path / "page.1.gz") is None


def test_releases_come_before_their_tracks(tmp_path):
    (tmp_path / "man1").mkdir()
    for name in ("tool_alpha_run", "tool_run", "tool_walk"):
        page = MAN.replace("count\\-words, cw", name.replace("_", " ")).replace("count\\-words", "it")
        page = page.replace("count the words", "walk the words") if name == "tool_walk" else page
        page = page.replace("reads each", "visits each") if name == "tool_walk" else page
        (tmp_path / "man1" / f"{name}.1").write_text(page, encoding="utf-8")
    (tmp_path / "man1" / "link.1").symlink_to("tool_walk.1")

    assert [page.document.split(":")[0] for page in collect_pages([tmp_path])] == ["tool run", "tool walk"]


@pytest.fixture(scope="module")
def run():
    """A run whose texts are the references with fewer of their words, and whose losses contradict the scores."""
    _, references = real_pairs(24)
    draw = random.Random(0)
    checkpoints = []
    shares = (0.3, 0.5, 0.45, 0.6, 0.9, 0.7, 0.8, 0.75)
    losses = (5, 4, 3, 3.5, 3.2, 4, 4.5, 5)
    for share, loss in zip(shares, losses, strict=True):
        texts = []
        for text in references:
            words = [word for word in text.split() if draw.random() < share]
            texts.append(" ".join(words) or "word")
        scores = measure(texts, references)
        test = dict(scores)
        for name, values in scores.items():
            if isinstance(values, list):
                test[name] = values[::-1]
        checkpoint = {"step": len(checkpoints) + 1, "val_loss": loss, "texts": texts, "f1": scores["layer5"]}
        checkpoints.append(checkpoint | {"validation": scores, "test": test})
    return {"checkpoints": checkpoints, "references": references, "seconds": {"training": 4, "decoding and scoring": 1}}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("patience", [1, 2, 3, 10])
def test_stops_are_those_of_the_callback(patience, tmp_path):
    values = np.array([0.3, 0.5, 0.45, 0.6, 0.6, 0.7, 0.65, 0.6, 0.55, 0.5])
    replay = trainer(tmp_path, [BERTScoreEarlyStopping(patience=patience)], max_epochs=len(values))
    replay.fit(Logs(values))

    assert rules.stop_early(values, patience) == replay.current_epoch - 1


def test_rules_choose(run):
    choices = apply_rules(run)
    f1 = [fmean(checkpoint["f1"]) for checkpoint in run["checkpoints"]]

    assert choices[BASELINE] == [[2, 7]]
    assert choices[LARGEST_F1] == choices[BEST] == [[f1.index(max(f1)), 7]] == [[4, 7]]
    assert choices[LAST] == [[7, 7]]
    # The losses are 5, 4, 3, 3.5, 3.2 and larger ones; the fourth score exceeds the second.
    assert choices["early stopping on val_loss, patience 2"] == [[2, 4]]
    assert choices["early stopping on F1, patience 1"] == [[1, 2]]
    assert choices["early stopping on F1, patience 2"] == [[4, 6]]
    assert choices["early stopping on F1, patience 2, weights at the stop"] == [[6, 6]]
    assert choices["F1 of 40 texts"] == rules.DRAWS * [[4, 7]]
    assert {stop for _, stop in choices["F1 of 10 texts"]} == {7}


def test_gains_are_paired_over_seeds(run):
    """Three seeds, whose baseline is checkpoint 0, 1 or 2, in two tasks."""
    runs = {(task, "few", seed): run for task in ("a", "b") for seed in range(3)}
    choices = {key: {BASELINE: [[key[2], 7]], LARGEST_F1: [[4, 5]]} for key in runs}
    summary = summarize_rules(runs, choices)
    layer6 = [fmean(checkpoint["test"]["layer6"]) for checkpoint in run["checkpoints"]]
    table = compare_rules({"rules": summary}).sort_index()
    gains = [layer6[4] - layer6[seed] for seed in range(3)]

    assert table.loc[LARGEST_F1, "a / few"]["layer6"].tolist() == pytest.approx(gains)
    assert set(table.loc[LARGEST_F1, "steps"]) == {6 / 8}
    assert set(table.loc[BASELINE, "layer6"]) == {0}
    assert summary["cost"] == 0.25
    draw = np.random.default_rng(1)
    means = []
    texts = np.array([[run["checkpoints"][i]["test"]["layer6"] for i in (4, seed)] for seed in range(3)])
    for _ in range(4000):
        seeds = draw.integers(3, size=3)
        tasks = [texts[seeds][:, :, draw.integers(24, size=24)] for _ in range(2)]
        means.append(np.mean([(task[:, 0] - task[:, 1]).mean() for task in tasks]))
    interval = summary["seeds_and_texts"]["layer6"]
    assert interval == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.01)


def test_a_cell_holds_the_interval_and_the_adjusted_p_value():
    draw = np.random.default_rng(0)
    gains = {}
    for name, shift in {"a": 0.1, "b": 0}.items():
        gains[(name,)] = pd.DataFrame({"bleu": draw.normal(shift, 0.1, 10)})
    tests = [stats.ttest_1samp(table["bleu"], 0) for table in gains.values()]
    adjusted = holm([test.pvalue for test in tests])

    _, _, *rows = format_table(["arm"], gains, [(key, "bleu") for key in gains]).splitlines()

    for row, values, test, p in zip(rows, gains.values(), tests, adjusted, strict=True):
        mean = 100 * values["bleu"].mean()
        low, high = (100 * end for end in test.confidence_interval())
        assert f"| {mean:+.2f} ({low:+.2f} to {high:+.2f}; p {p:.3f}) |" in row


def test_the_tables_of_the_page_are_those_of_the_stored_results():
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    made = [table.splitlines() for table in tables(json.loads((STUDY / "results.json").read_text()))]
    shown = [line for line in page.partition("## Results")[2].splitlines() if line.startswith("|")]

    assert len(shown) > 30
    assert set(shown) <= {line for table in made for line in table}
    assert {table[0] for table in made} <= set(shown)


@pytest.fixture(scope="module")
def pairs():
    summaries, documents = real_pairs(60)
    texts = enumerate(zip(documents, summaries, strict=True))
    return [(i, DocstringPair(*both, f"tool {i}")) for i, both in texts]


@pytest.fixture
def generator(pairs):
    torch.manual_seed(0)
    return Generator._make(load_generator(pairs, encoder_layers=2, decoder_layers=1, source_tokens=40))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_generator_predicts_from_stored_states_as_from_the_texts(pairs, generator):
    documents = [pair.document for _, pair in pairs[:3]]
    inputs = generator.tokenizer(documents, max_length=40, truncation=True, padding=True, return_tensors="pt")
    examples = generator.encode(pairs[:3])
    batch = generator.collate(examples)
    with torch.no_grad():
        output = generator.model.eval()(inputs["input_ids"], inputs["attention_mask"], labels=batch["labels"])
        torch.testing.assert_close(generator.model(**batch).logits, output.logits, atol=1e-5, rtol=1e-4)

    assert generator.loss(examples) == pytest.approx(output.loss.item(), rel=0.02)  # in mixed precision


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arms_start_alike_and_train_the_decoding_half(pairs, generator):
    examples = generator.encode(pairs[:24])

    def trained(seed=1, shuffled=None):
        copied = copy.deepcopy(generator)
        risk = None if shuffled is None else make_risk(copied, seed, 1, shuffled=shuffled)
        copied.train(examples, 3, seed, falls=True, risk=risk)
        return dict(copied.model.named_parameters())

    before = dict(generator.model.named_parameters())
    plain = trained()
    head = "decoder.bert.encoder.layer.0.crossattention.self.query.weight"

    for name, weight in plain.items():
        frozen = name.startswith("encoder.") or "word_embeddings" in name
        assert frozen == torch.equal(weight, before[name]), name

    assert torch.equal(trained()[head], plain[head])
    others = [trained(seed=2), trained(shuffled=False), trained(shuffled=True)]
    assert not any(torch.equal(other[head], plain[head]) for other in others)


def test_shuffled_rewards_are_those_of_the_same_input(generator):
    texts = [f"{word} rain fell" for word in ["a", "b", "c", "d", "e", "f", "g", "h"]]
    references = [["rain fell"]] * 4 + [["the sun"]] * 4
    true, shuffled = (
        make_risk(generator, 0, 1, shuffled=shuffled).reward(texts, references) for shuffled in (False, True)
    )

    assert shuffled != true
    assert [sorted(shuffled[:4]), sorted(shuffled[4:])] == [sorted(true[:4]), sorted(true[4:])]


def test_measures_are_those_of_the_texts(bert_score_f1):
    preds, target = real_pairs(4)
    scores = measure([*preds, target[0]], [*target, target[0]])

    for layer in (3, 5, 6):
        expected = bert_score_f1(preds, target, num_layers=layer).tolist()
        assert scores[f"layer{layer}"][:4] == pytest.approx(expected, abs=1e-6)

    assert scores["rougeL"][-1] == 1
    assert measure(["a b a a", "c"], ["a b", "c"])["repetition"] == [0.5, 0]
    assert scores["length"] == sum(map(len, map(str.split, [*preds, target[0]]))) / sum(
        map(len, map(str.split, [*target, target[0]]))
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_stopped_study_resumes(pairs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "load_task", lambda task: Corpus(pairs[:40], pairs[40:46], pairs[50:56]))
    monkeypatch.setattr(training, "REGIMES", {"few pairs": (8, 8, True), "all pairs": (8, 8, True)})
    monkeypatch.setattr(training, "CHECKPOINTS", 8)
    monkeypatch.setattr(training, "TARGET_TOKENS", 8)
    monkeypatch.setattr(command, "REGIMES", training.REGIMES)
    monkeypatch.setattr(command, "ARM_STEPS", (1,))
    monkeypatch.setattr(training, "TIMED_STEPS", 1)
    arguments = ["--seeds=2", "--jobs=1", "--output", str(tmp_path)]
    first = command.main(arguments)
    stored = [path for path in tmp_path.rglob("*.json") if path.name != "results.json"]
    times = {path: path.stat().st_mtime_ns for path in stored}
    stopped = [tmp_path / "arm_manual_pages_risk_1_seed1.json", tmp_path / "docstrings_few_pairs_seed1.rules.json"]
    before = [json.loads(path.read_text()) for path in stopped]
    for path in stopped:
        path.unlink()
    second = command.main(arguments)

    assert [json.loads(path.read_text()) for path in stopped] == before
    assert {path for path, time in times.items() if path.stat().st_mtime_ns != time} == set(stopped)
    assert second == first == json.loads((tmp_path / "results.json").read_text())
    assert (tmp_path / "figure.png").exists()
    assert [len(curve["step"]) for curve in first["rules"]["curves"]] == 8 * [8]
    assert {row["arm"] for row in first["arms"]} == set(ARMS)
    # As long as one step of the risk: at least as many with fewer samples.
    steps = {row["arm"]: row["steps"] for row in first["equal_time"] if row["task"] == "docstrings"}
    assert steps["risk"] == 1 <= steps["risk, every third step"] <= steps["cross-entropy"]
    assert {row["seed"] for row in first["control"]} == {2, 3}
    (tmp_path / "results.json").write_text(json.dumps({"rules": first["rules"]}))
    assert command.main([*arguments, "--parts", "equal_time"]).keys() == first.keys() - {"arms"}
    assert "ROUGE-L" in capsys.readouterr().out
