"""The training study: its texts, its arithmetic, and that what was stopped goes on where it was."""

import gzip
import json
import shutil
import subprocess
from itertools import islice
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from scipy import stats

from examples.docstring_training import SelfCritical, Soft
from examples.docstrings import DocstringPair
from examples.study import __main__ as command
from examples.study import tasks
from examples.study.arms import DEFAULT_ARMS, parse_arm
from examples.study.manual_pages import DEFAULT_FOLDERS, collect_pages, read_page
from examples.study.measures import measure, repetition
from examples.study.results import compare, spreads
from examples.study.tasks import Pair, load_task
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


def test_arms_read_their_settings(encoder):
    assert [parse_arm(line).name for line in DEFAULT_ARMS] == list(DEFAULT_ARMS)
    assert len({parse_arm(line).slug for line in DEFAULT_ARMS}) == len(DEFAULT_ARMS)
    arm = parse_arm("soft:weight=3,layer=2,relaxation=gumbel,temperature=0.5")
    added = arm.loss(encoder, encoder.tokenizer.tokenizer)
    assert isinstance(added, Soft)
    assert (arm.weight, added.loss.relaxation, added.loss.temperature) == (3, "gumbel", 0.5)
    assert added.loss.encoder.num_layers == 2
    assert isinstance(parse_arm("self-critical").loss(encoder, encoder.tokenizer.tokenizer), SelfCritical)
    assert parse_arm("cross-entropy").loss(encoder, None) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hard", "an arm must be"),
        ("soft:weight", "name=value"),
        ("soft:temprature=1", "no argument temprature"),
        ("self-critical:relaxation=gumbel", "no settings relaxation"),
        ("cross-entropy:weight=2", "no settings weight"),
    ],
)
def test_arms_that_are_none_say_why(line, message):
    with pytest.raises(ValueError, match=message):
        parse_arm(line)


def test_measures_are_those_of_the_texts(encoder):
    assert [repetition(text) for text in ("", "one", "A b, a c, d", "no no no no")] == [0, 0, 2 / 7, 0.75]
    preds, target = real_pairs(4)
    found = measure([*preds, target[0]], [*target, target[0]], {"trained": encoder}, "cpu")
    assert found["trained_f1"][-1] == pytest.approx(1, abs=1e-5)
    assert found["rougeL"][-1] == found["rouge1"][-1] == 1
    assert found["words"][:4] == [len(text.split()) for text in preds]
    assert {len(values) for values in found.values()} == {5}


def made_up_runs(seeds=3, texts=40):
    """Figures of two arms and the baseline, of which one is better by 0.1 on average."""
    random = np.random.default_rng(0)
    base = random.normal(size=texts)
    runs = {}
    for arm, gain in (("cross-entropy", 0.0), ("soft", 0.1), ("self-critical", 0.0)):
        for seed in range(seeds):
            values = (base + gain + 0.05 * random.normal(size=texts)).tolist()
            runs[arm, seed] = {"measured": {"f1": values, "words": [2.0] * texts, "reference_words": [4.0] * texts}}
    return runs


def test_means_and_comparisons_are_those_of_scipy():
    runs = made_up_runs()
    found = spreads(runs)
    per_seed = [fmean(runs["soft", seed]["measured"]["f1"]) for seed in range(3)]
    assert found["soft"]["f1"].mean == pytest.approx(fmean(per_seed))
    assert found["soft"]["f1"].deviation == pytest.approx(stdev(per_seed))
    assert found["soft"]["length_ratio"].mean == 0.5
    soft, critical = compare(runs, "f1")
    values = {arm: np.mean([runs[arm, seed]["measured"]["f1"] for seed in range(3)], 0) for arm, _ in runs}
    interval = stats.bootstrap((values["soft"] - values["cross-entropy"],), np.mean, method="percentile", rng=1)
    assert (soft.low, soft.high) == pytest.approx(tuple(interval.confidence_interval), abs=5e-3)
    assert soft.difference == pytest.approx(np.mean(values["soft"] - values["cross-entropy"]))
    assert soft.p_value < 0.01 < critical.p_value
    plain = [fmean(runs["cross-entropy", seed]["measured"]["f1"]) for seed in range(3)]
    assert soft.p_over_seeds == pytest.approx(stats.ttest_rel(per_seed, plain).pvalue)
    assert soft.by_seed[1] == pytest.approx(per_seed[1] - fmean(runs["cross-entropy", 1]["measured"]["f1"]))


def test_tasks_are_drawn_once_and_hold_sources_out(tmp_path, monkeypatch):
    pairs = [Pair(f"text {i}", f"summary {i}") for i in range(150)]
    monkeypatch.setitem(tasks.TASKS, "docstrings", lambda: (pairs, pairs[::-1]))
    task = load_task("docstrings", tmp_path, 20, 10)
    assert (len(task.train), len(task.held_out)) == (20, 10)
    monkeypatch.setitem(tasks.TASKS, "docstrings", lambda: ([], []))
    assert load_task("docstrings", tmp_path, 20, 10) == task
    with pytest.raises(ValueError, match="found 0 training pairs"):
        load_task("docstrings", tmp_path / "other", 20, 10)
    found = [
        DocstringPair(f"text {i}", f"summary {i}", name) for i, name in enumerate(("json", "networkx.x", "torch.nn"))
    ]
    monkeypatch.setattr(tasks, "load_corpus", lambda: (found[:1], found[1:]))
    train, held_out = tasks.docstrings()
    assert [pair.summary for pair in train] == ["summary 0", "summary 2"]
    assert held_out == [Pair("text 1", "summary 1")]


SMALL = ["--jobs=1", "--eval-pairs=6", "--train-pairs=16", "--batch-size=4", "--start-steps=1", "--steps=2"]
SMALL += ["--generator-layers=1", "--timing-rounds=1", "--held-out-layers", "3"]


@pytest.fixture
def small_task(monkeypatch):
    """One task of real texts, without reading the machine's."""
    summaries, documents = real_pairs(200)
    pairs = [Pair(*texts) for texts in zip(documents, summaries, strict=True)]
    monkeypatch.setattr(tasks, "TASKS", {"docstrings": lambda: (pairs[:100], pairs[100:])})


@pytest.mark.slow
@pytest.mark.usefixtures("small_task", "one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*val_dataloader.*")
def test_a_stopped_study_goes_on_where_it_was(tmp_path, capsys):
    arms = ["--arms", "soft:layer=2,anneal=0.5"]
    given = [*SMALL, *arms, "--tasks", "docstrings", "--output", str(tmp_path)]
    first = command.main([*given, "--seeds=1"])
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix in (".json", ".safetensors")}
    (stopped,) = tmp_path.glob("docstrings/soft*/seed0.json")
    before = json.loads(stopped.read_text())
    stopped.unlink()
    results = command.main([*given, "--seeds=2"])

    again = json.loads(stopped.read_text())
    assert again["summaries"] == before["summaries"]
    assert again["measured"] == before["measured"]
    kept = [path for path, time in files.items() if path.stat().st_mtime_ns == time]
    assert {path.name for path in files} - {path.name for path in kept} <= {"results.json", "seed0.json"}
    assert len(kept) == len(files) - 2

    found = results["tasks"]["docstrings"]
    assert set(found["arms"]) == {"cross-entropy", *arms[1:]}
    # The same texts for all arms of a seed, others for other seeds.
    (tokens,) = {tuple(tokens) for tokens in found["target_tokens"].values()}
    assert len(set(tokens)) == 2
    assert found["arms"]["cross-entropy"]["trained_f1"]["deviation"] is not None
    assert first["tasks"]["docstrings"]["arms"]["cross-entropy"]["trained_f1"]["deviation"] is None
    assert {one["arm"] for one in found["differences"]["layer3_f1"]} == set(arms[1:])
    assert all(seconds > 0 for seconds in results["seconds_per_step"].values())
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert "R-L" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        command.main([*given, "--steps=3"])
    assert "contains a study with steps 2" in capsys.readouterr().err


@pytest.mark.usefixtures("small_task", "one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*val_dataloader.*")
def test_arms_start_alike_and_their_losses_reach_the_generator(tmp_path, minilm):
    from examples.study.training import Settings, make_module, training_batches

    settings = Settings(minilm, 1, minilm, 5, (), (), 16, 4, 0, 1, 4, 1e-3, 1e-3, "cpu", "32-true")
    pairs = load_task("docstrings", tmp_path, 16, 4).train
    gradients = {}
    for line in ("cross-entropy", "soft", "soft:weight=0"):
        module = make_module(settings, parse_arm(line), None, 1e-3).eval()
        module.log = module.log_dict = lambda *_, **__: None
        batch = next(iter(training_batches(module, pairs, settings, seed=1)))
        module.training_step(batch, 0).backward()
        gradients[line] = {name: one.grad for name, one in module.model.named_parameters() if one.requires_grad}
    assert not any("encoder." in name.split("decoder")[0] for name in gradients["soft"])
    for name, plain in gradients["cross-entropy"].items():
        torch.testing.assert_close(gradients["soft:weight=0"][name], plain, atol=1e-6, rtol=1e-4)
    largest = max(gradients["soft"], key=lambda name: gradients["soft"][name].abs().max())
    assert not torch.allclose(gradients["soft"][largest], gradients["cross-entropy"][largest], rtol=1e-3)
