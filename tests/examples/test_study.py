"""The study: its texts, its generator, its arms, its arithmetic, and that a stopped study resumes."""

import gzip
import json
import math
import shutil
import subprocess
from itertools import islice
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from transformers import AutoModel

from bertscore_tm.losses import Candidates, DistilledTargets
from bertscore_tm.statistics import holm
from examples.study import __main__ as command
from examples.study import texts, work
from examples.study.arms import ARMS, COMPARISONS, TESTED
from examples.study.generator import Collate, load_generator, make_generator
from examples.study.manual_pages import DEFAULT_FOLDERS, ManualPage, collect_pages, read_page
from examples.study.measures import measure, repetition
from examples.study.results import bootstrap_seeds_and_texts, compare, spreads
from examples.study.texts import Pair, load_texts
from examples.study.training import Settings, make_loss, random_targets, rate_factor, replaced, train
from tests.support.texts import real_pairs

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
    assert page.group == "count"
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
    files = (file for folder in DEFAULT_FOLDERS for file in sorted(folder.glob("man[178]/[a-f]*.gz")))
    pages = {file: page for file in islice(files, 60) if (page := read_page(file)) is not None}
    if not pages:
        pytest.skip("no manual pages on this machine")
    shown = subprocess.run(["lexgrog", *pages], capture_output=True, text=True, check=False).stdout
    for file, page in pages.items():
        assert f'{file}: "' in shown
        assert f'- {page.summary}"' in shown.replace("  ", " "), (file, page.summary)


def test_families_of_commands_stay_together_and_texts_are_drawn_once(tmp_path, monkeypatch):
    path = tmp_path / "texts.json"
    pages = [ManualPage(f"text {i}", f"summary {i}", f"tool {i % 50}") for i in range(200)]
    monkeypatch.setattr(texts, "collect_pages", lambda: pages)
    found = load_texts(path, 20, 5)
    assert (len(found.train), len(found.held_out)) == (20, 5)
    families = [{int(pair.summary.split()[1]) % 50 for pair in side} for side in vars(found).values()]
    assert sum(map(len, families)) == len(set.union(*families))
    monkeypatch.setattr(texts, "collect_pages", list)
    assert load_texts(path, 20, 5) == found
    with pytest.raises(ValueError, match=r"0 train, 0 validation, 0 held_out pairs.*--held-out-pairs"):
        load_texts(tmp_path / "other.json", 20, 5)


@pytest.fixture(scope="module")
def settings(minilm):
    return Settings(minilm, 3, (5, 6), 1, 1, 0, 6, 4, 1e-3, 2, 1, 0, 3, 1e-3, 1, 2, 0.5)


@pytest.fixture(scope="module")
def pairs():
    summaries, documents = real_pairs(12)
    return [Pair(*both) for both in zip(documents, summaries, strict=True)]


@pytest.fixture(scope="module")
def saved(minilm, pairs, tmp_path_factory):
    """An untrained generator, saved to a folder."""
    folder = tmp_path_factory.mktemp("generator")
    make_generator(minilm, 1, 1, pairs, seed=0).save(folder)
    return folder


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_generator_tokenizes_and_predicts_like_the_one_with_all_tokens(minilm, pairs, saved, encoder):
    full = encoder.tokenizer.tokenizer
    cut = load_generator(saved)
    assert len(cut.tokenizer) < 1000 < len(full)
    for pair in pairs:
        assert cut.tokenizer.tokenize(pair.summary) == full.tokenize(pair.summary)
        assert cut.tokenizer.decode(cut.tokenizer(pair.summary)["input_ids"], skip_special_tokens=True)
    # From stored states of unequal length as from the texts, and from the rows of the same tokens.
    documents = [pair.document for pair in pairs[:3]]
    inputs = cut.inputs(documents)
    batch = Collate(cut.tokenizer)(
        [(row, pair.summary) for row, pair in zip(cut.encode(documents), pairs, strict=False)]
    )
    with torch.no_grad():
        logits = cut.model.eval()(**inputs, labels=batch["labels"]).logits
        torch.testing.assert_close(cut.model(**batch).logits, logits, atol=1e-5, rtol=1e-4)
    rows = full.convert_tokens_to_ids(cut.tokenizer.convert_ids_to_tokens(range(len(cut.tokenizer))))
    original = AutoModel.from_pretrained(minilm).get_input_embeddings().weight
    torch.testing.assert_close(cut.model.decoder.get_input_embeddings().weight, original[rows])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arms_start_alike_and_train_the_decoding_half(settings, pairs, saved):
    states = load_generator(saved).encode([pair.document for pair in pairs])
    examples = [(row, pair.summary) for row, pair in zip(states, pairs, strict=True)]

    def trained(arm, seed=1, targets=None):
        generator = load_generator(saved)
        loss = make_loss(arm, generator, settings, examples)
        given = examples if targets is None else replaced(examples, targets, settings, seed)
        train(generator, given, loss, settings, 3, seed)
        return dict(generator.model.named_parameters())

    before = dict(load_generator(saved).model.named_parameters())
    plain = trained(ARMS["cross-entropy"])
    head = "decoder.bert.encoder.layer.0.crossattention.self.query.weight"
    for name, weight in plain.items():
        frozen = name.startswith("encoder.") or "word_embeddings" in name
        assert frozen == torch.equal(weight, before[name]), name
    assert torch.equal(trained(ARMS["cross-entropy"])[head], plain[head])
    assert torch.equal(trained(ARMS["best-of-n"], targets=[None] * 12)[head], plain[head])
    others = [
        trained(ARMS["cross-entropy"], seed=2),
        trained(ARMS["soft"]),
        trained(ARMS["best-of-n"], targets=["another text"] * 12),
    ]
    assert not any(torch.equal(other[head], plain[head]) for other in others)


def test_the_learning_rate_falls_to_zero():
    factors = [rate_factor(step, 100, 10) for step in range(101)]
    assert max(factors) == factors[9] == 1
    assert factors[100] == 0 < factors[99] < 0.02
    assert np.diff(factors[9:]) == pytest.approx(-1 / 91)


def test_random_targets_replace_the_references_that_the_best_replace():
    best = DistilledTargets(["b", None, "c"], torch.zeros(3), 0)
    candidates = [Candidates("a", ["b", "x"]), Candidates("a", ["y"]), Candidates("a", ["c"])]
    drawn = [random_targets(best, candidates, seed) for seed in range(20)]
    assert {row[0] for row in drawn} == {"b", "x"}
    assert all(row[1:] == [None, "c"] for row in drawn)


def test_measures_are_those_of_the_texts(minilm):
    from bertscore_tm import FrozenEncoder

    assert [repetition(text) for text in ("", "one", "A b, a c, d", "no no no no")] == [0, 0, 2 / 7, 0.75]
    preds, target = real_pairs(4)
    encoder = FrozenEncoder(minilm, num_layers=6, all_layers=True)
    found = measure([*preds, target[0]], [*target, target[0]], encoder, [3, 6])
    assert found["layer3_f1"][-1] == pytest.approx(1, abs=1e-5)
    assert found["layer3_f1"][0] > found["layer6_f1"][0]
    assert found["rougeL"][-1] == 1
    assert found["words"][:4] == [len(text.split()) for text in preds]
    assert {len(values) for values in found.values()} == {5}


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


def test_the_bootstrap_has_the_variance_of_seeds_and_texts():
    draw = np.random.default_rng(2)
    seeds, texts_ = 0.5 * draw.normal(size=(2, 10, 1)), draw.normal(size=(1, 1, 200))
    low, high, _ = bootstrap_seeds_and_texts(seeds + texts_)
    variance = sum(one.var() for one in seeds) / 10 / 4 + texts_.var() / 200
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.03)
    assert (low + high) / 2 == pytest.approx((seeds + texts_).mean(), abs=0.02)


def made_up_runs(seeds=3, num_texts=40):
    """Runs of all arms from two checkpoints, of which one arm is better by 0.1 on average."""
    draw = np.random.default_rng(0)
    base = draw.normal(size=num_texts)
    runs = {}
    for arm in ARMS:
        for number in range(2):
            for seed in range(seeds):
                gain = 0.1 if arm == "best-of-n" else 0.0
                values = (base + gain + 0.05 * draw.normal(size=num_texts)).tolist()
                measured = {"layer6_f1": values, "layer5_f1": values, "rougeL": values[::-1]}
                measured |= {"words": [2.0] * num_texts, "reference_words": [4.0] * num_texts}
                runs[arm, number, seed] = {"measured": measured}
    return runs


def test_means_and_comparisons_are_paired_and_adjusted_together():
    runs = made_up_runs()
    found = spreads(runs)
    per_run = [fmean(runs["soft", number, seed]["measured"]["rougeL"]) for number in range(2) for seed in range(3)]
    assert found["soft"]["rougeL"].mean == pytest.approx(fmean(per_run))
    assert found["soft"]["rougeL"].deviation == pytest.approx(stdev(per_run))
    assert found["soft"]["length_ratio"].mean == 0.5

    compared = compare(runs, ["layer5_f1", *TESTED])
    assert [(one.arm, one.minus) for one in compared] == 3 * list(COMPARISONS)
    tested = [one for one in compared if one.p_adjusted is not None]
    assert {one.measure for one in tested} == set(TESTED)
    assert [one.p_adjusted for one in tested] == holm([one.p_value for one in tested])
    for one in tested:
        assert one.low < one.difference < one.high
        is_better = one.arm == "best-of-n"
        assert (one.p_adjusted < 0.01) == is_better == (one.low > 0.05), one
    best = next(one for one in tested if one.arm == "best-of-n")
    gains = [
        fmean(runs["best-of-n", 1, seed]["measured"]["layer6_f1"])
        - fmean(runs["cross-entropy", 1, seed]["measured"]["layer6_f1"])
        for seed in range(3)
    ]
    assert best.by_seed[1] == pytest.approx(gains)
    assert best.by_checkpoint[1] == pytest.approx(fmean(gains))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_stopped_study_resumes(tmp_path, monkeypatch, capsys):
    summaries, documents = real_pairs(60)
    found = [ManualPage(*both, f"tool {i}") for i, both in enumerate(zip(documents, summaries, strict=True))]
    monkeypatch.setattr(texts, "collect_pages", lambda: found)
    monkeypatch.setattr(work, "_TIMED_ROUNDS", 1)
    given = ["--jobs=1", "--train-pairs=8", "--held-out-pairs=6", "--batch-size=4", "--max-epochs=1", "--arm-pairs=4"]
    given += ["--steps=1", "--warmup=1", "--encoder-layers=1", "--decoder-layers=1", "--num-candidates=2"]
    given += ["--checkpoints=1", "--seeds=1", "--output", str(tmp_path)]
    first = command.main(given)
    stored = [path for path in tmp_path.rglob("*.*") if path.name not in ("results.json", "figure.png")]
    times = {path: path.stat().st_mtime_ns for path in stored}
    stopped = tmp_path / "checkpoint0" / "best-of-n.seed0.json"
    before = json.loads(stopped.read_text())
    stopped.unlink()
    second = command.main(given)

    again = json.loads(stopped.read_text())
    assert (again["summaries"], again["measured"]) == (before["summaries"], before["measured"])
    assert {path for path, time in times.items() if path.stat().st_mtime_ns != time} == {stopped}
    assert second == first
    assert set(first["arms"]) == {"start", *ARMS}
    assert first["steps"]["cross-entropy, wall time"] >= first["steps"]["soft"] == 1
    assert len(first["comparisons"]) == 5 * len(COMPARISONS)
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert "ROUGE-L" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        command.main([*given, "--steps=3"])
    assert "contains a study with steps 1" in capsys.readouterr().err
