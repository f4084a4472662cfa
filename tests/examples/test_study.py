"""The study: its texts, its generator, its arms, its tables, and that a stopped study resumes."""

import gzip
import json
import shutil
import subprocess
from itertools import islice
from statistics import fmean, stdev

import numpy as np
import pytest
import torch

from bertscore_tm.statistics import holm
from examples.docstrings import DocstringPair
from examples.study import __main__ as command
from examples.study.manual_pages import FOLDERS, collect_pages, read_page, split_pages
from examples.study.results import bootstrap_seeds_and_texts, compare, spreads, tables
from examples.study.training import (
    Generator,
    Settings,
    make_generator,
    make_loss,
    measure,
    repetition,
    train,
)
from tests.support.markdown_blocks import ROOT
from tests.support.texts import real_pairs

STUDY = ROOT / "examples" / "study"

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


def test_each_text_occurs_once_and_releases_come_before_their_tracks(tmp_path):
    (tmp_path / "man1").mkdir()
    for name in ("tool_alpha_run", "tool_run", "tool_walk"):
        page = MAN.replace("count\\-words, cw", name.replace("_", " ")).replace("count\\-words", "it")
        page = page.replace("count the words", "walk the words") if name == "tool_walk" else page
        page = page.replace("reads each", "visits each") if name == "tool_walk" else page
        (tmp_path / "man1" / f"{name}.1").write_text(page, encoding="utf-8")
    (tmp_path / "man1" / "link.1").symlink_to("tool_walk.1")
    assert [page.document.split(":")[0] for page in collect_pages([tmp_path])] == ["tool run", "tool walk"]


@pytest.mark.skipif(shutil.which("lexgrog") is None, reason="needs lexgrog, of man-db")
def test_summaries_are_those_that_man_shows():
    files = (file for folder in FOLDERS for file in sorted(folder.glob("man[178]/[a-f]*.gz")))
    pages = {file: page for file in islice(files, 60) if (page := read_page(file)) is not None}
    if not pages:
        pytest.skip("no manual pages on this machine")
    shown = subprocess.run(["lexgrog", *pages], capture_output=True, text=True, check=False).stdout
    for file, page in pages.items():
        assert f'{file}: "' in shown
        assert f'- {page.summary}"' in shown.replace("  ", " "), (file, page.summary)


def test_the_bootstrap_is_that_of_a_plain_loop():
    draw = np.random.default_rng(1)
    differences = 0.3 * draw.normal(size=(2, 4, 1)) + draw.normal(size=(1, 1, 30)) + draw.normal(size=(2, 4, 30)) + 0.2
    means = []
    for _ in range(4000):
        drawn = draw.integers(30, size=30)
        rows = [differences[number, seed, drawn] for number in range(2) for seed in draw.integers(4, size=4)]
        means.append(np.mean(rows))
    low, high, p_value = bootstrap_seeds_and_texts(differences)
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.04)
    assert p_value == pytest.approx(2 * min(np.mean(np.array(means) <= 0), np.mean(np.array(means) >= 0)), abs=0.03)


def made_up_runs(seeds=3, num_texts=40):
    """Runs of all arms from two checkpoints, of which one arm is better by 0.1 on average."""
    draw = np.random.default_rng(0)
    base, runs = draw.normal(size=num_texts), {}
    for arm in command.ARMS:
        for number in range(2):
            for seed in range(seeds):
                values = (base + 0.1 * (arm == "soft") + 0.05 * draw.normal(size=num_texts)).tolist()
                runs[arm, number, seed] = {"layer6_f1": values, "layer5_f1": values, "rougeL": values[::-1]}
                runs[arm, number, seed] |= {"words": [2.0] * num_texts, "reference_words": [4.0] * num_texts}
    return runs


def test_means_and_comparisons_are_paired_and_adjusted_together():
    runs = made_up_runs()
    found = spreads(runs)
    per_run = [fmean(runs["soft", number, seed]["rougeL"]) for number in range(2) for seed in range(3)]
    assert found["soft"]["rougeL"] == pytest.approx({"mean": fmean(per_run), "deviation": stdev(per_run)})
    assert found["soft"]["length_ratio"]["mean"] == 0.5

    compared = compare(runs, ["layer5_f1", "layer6_f1", "rougeL"])
    others = [(arm, "cross-entropy") for arm in command.ARMS[1:]]
    assert [(one["arm"], one["minus"]) for one in compared] == 3 * others
    tested = [one for one in compared if one["p_adjusted"] is not None]
    assert {one["measure"] for one in tested} == {"layer6_f1", "rougeL"}
    assert [one["p_adjusted"] for one in tested] == holm([one["p_value"] for one in tested])
    for one in tested:
        assert one["low"] < one["difference"] < one["high"]
        assert (one["p_adjusted"] < 0.01) == (one["arm"] == "soft") == (one["low"] > 0.05), one
    best = next(one for one in tested if one["arm"] == "soft")
    means = {arm: [fmean(runs[arm, 1, seed]["layer6_f1"]) for seed in range(3)] for arm in ("soft", "cross-entropy")}
    gains = [a - b for a, b in zip(means["soft"], means["cross-entropy"], strict=True)]
    assert best["by_seed"][1] == pytest.approx(gains)
    assert best["by_checkpoint"][1] == pytest.approx(fmean(gains))


def test_the_tables_of_the_page_are_those_of_the_stored_results(capsys):
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    results = command.main(["--tables", str(STUDY / "results.json")])
    printed = capsys.readouterr().out
    for table in tables(results):
        assert table in page
        assert table in printed
    assert len({table.splitlines()[0] for table in tables(results)}) == 3


def test_families_of_commands_stay_together():
    pages = [DocstringPair(f"text {i}", f"summary {i}", f"tool {i % 50}") for i in range(200)]
    corpus = split_pages(pages)
    families = [{pair.module for _, pair in side} for side in corpus]
    assert sum(map(len, families)) == len(set.union(*families)) == 50
    assert len(corpus.train) > len(corpus.test) > 0


@pytest.fixture(scope="module")
def settings():
    return Settings(encoder_layers=1, decoder_layers=1, batch_size=4, learning_rate=1e-3, warmup=1)


@pytest.fixture(scope="module")
def pairs():
    summaries, documents = real_pairs(12)
    return [(i, DocstringPair(*both, "")) for i, both in enumerate(zip(documents, summaries, strict=True))]


@pytest.fixture(scope="module")
def saved(pairs, settings, tmp_path_factory):
    """An untrained generator, saved to a folder."""
    folder = tmp_path_factory.mktemp("generator")
    make_generator(pairs, settings, seed=0).save(folder)
    return folder


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_generator_predicts_from_stored_states_as_from_the_texts(pairs, saved):
    generator = Generator.load(saved)
    documents = [pair.document for _, pair in pairs[:3]]
    inputs = generator.tokenizer(documents, max_length=48, truncation=True, padding=True, return_tensors="pt")
    batch = generator.collate(generator.encode(pairs[:3]))
    with torch.no_grad():
        logits = generator.model.eval()(inputs["input_ids"], inputs["attention_mask"], labels=batch["labels"]).logits
        torch.testing.assert_close(generator.model(**batch).logits, logits, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arms_start_alike_and_train_the_decoding_half(settings, pairs, saved):
    examples = Generator.load(saved).encode(pairs)

    def trained(seed=1, is_soft=False):
        generator = Generator.load(saved)
        train(generator, examples, make_loss(generator, examples) if is_soft else None, settings, 3, seed)
        return dict(generator.model.named_parameters())

    before, plain = dict(Generator.load(saved).model.named_parameters()), trained()
    head = "decoder.bert.encoder.layer.0.crossattention.self.query.weight"
    for name, weight in plain.items():
        frozen = name.startswith("encoder.") or "word_embeddings" in name
        assert frozen == torch.equal(weight, before[name]), name
    assert torch.equal(trained()[head], plain[head])
    assert not any(torch.equal(other[head], plain[head]) for other in (trained(seed=2), trained(is_soft=True)))


def test_measures_are_those_of_the_texts(minilm, bert_score_f1):
    assert [repetition(text) for text in ("", "one", "A b, a c, d", "no no no no")] == [0, 0, 2 / 7, 0.75]
    preds, target = real_pairs(4)
    found = measure([*preds, target[0]], [*target, target[0]])
    assert found["layer5_f1"][:4] == pytest.approx(bert_score_f1(preds, target).tolist(), abs=1e-6)
    assert found["layer3_f1"][-1] == pytest.approx(1, abs=1e-5)
    assert found["rougeL"][-1] == 1
    assert found["words"][:4] == [len(text.split()) for text in preds]
    assert {len(values) for values in found.values()} == {5}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_stopped_study_resumes(tmp_path, monkeypatch, capsys):
    summaries, documents = real_pairs(60)
    found = [DocstringPair(*both, f"tool {i}") for i, both in enumerate(zip(documents, summaries, strict=True))]
    monkeypatch.setattr(command, "collect_pages", lambda: found)
    given = ["--train-pairs=8", "--held-out-pairs=6", "--batch-size=4", "--max-epochs=1", "--arm-pairs=4", "--steps=1"]
    given += ["--warmup=1", "--encoder-layers=1", "--decoder-layers=1", "--checkpoints=1", "--seeds=1"]
    given += ["--output", str(tmp_path)]
    first = command.main(given)
    stored = [path for path in tmp_path.rglob("*.*") if path.name != "results.json"]
    times = {path: path.stat().st_mtime_ns for path in stored}
    stopped = tmp_path / "checkpoint0" / "soft.seed0.json"
    before = json.loads(stopped.read_text())
    stopped.unlink()
    second = command.main(given)

    assert json.loads(stopped.read_text()) == before
    assert {path for path, time in times.items() if path.stat().st_mtime_ns != time} == {stopped}
    assert second == first == json.loads((tmp_path / "results.json").read_text())
    assert set(first["arms"]) == {"start", *command.ARMS}
    assert first["steps"]["cross-entropy, wall time"] >= first["steps"]["soft"] == 1
    assert len(first["comparisons"]) == 5 * 2
    assert "ROUGE-L" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        command.main([*given, "--steps=3"])
    assert "contains a study with steps 1" in capsys.readouterr().err
    monkeypatch.setattr(command, "collect_pages", list)
    with pytest.raises(SystemExit):
        command.main([*given[:-1], str(tmp_path / "other")])
    assert "--held-out-pairs 6 exceeds what" in capsys.readouterr().err
