"""Every block of the pages runs and prints the output on the page, and every link has a target."""

import json
import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from bertscore_tm.cli import main
from tests.support.markdown_blocks import ROOT, anchors, blocks, links, markdown_files, same_output
from tests.support.processes import run_process
from tests.support.shell import run_on_ranks, write_lines, write_records
from tests.support.texts import real_pairs
from tests.support.torchrun import run_torchrun_command

PAGES = [ROOT / "examples" / "README.md", *sorted((ROOT / "examples" / "docs").glob("*.md"))]
README = ROOT / "README.md"
BLOCKS = {path.relative_to(ROOT).as_posix(): blocks(path) for path in (README, *PAGES)}
# Commands of the pages are those of this environment.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Pages whose blocks run in processes of their own, in test_engines.py.
ELSEWHERE = {"examples/docs/many_machines.md"}
# Blocks that need a package which the tests do without: compiled only, unless it is there.
NEEDS = {
    "examples/docs/loss.md": {"entmax"},
    "examples/docs/reinforcement_learning.md": {"trl", "verifiers"},
}


def has_python(name):
    return any(block.language == "python" for block in BLOCKS[name])


def test_every_kind_of_block_is_known():
    all_blocks = list(chain(*BLOCKS.values()))
    outputs = [block for block in all_blocks if block.language == "text"]
    checked = [block for block in all_blocks if block.language != "text" and block.output is not None]

    assert {block.language for block in all_blocks} <= {"console", "dockerfile", "python", "text"}
    # Outputs directly follow the block that prints them, or nothing would compare them.
    assert len(checked) == len(outputs) > 8


def test_outputs_may_differ_by_one_unit_in_the_last_digit():
    assert same_output("f1 0.87, 3 texts\n", "f1  0.88, 3 texts")


@pytest.mark.parametrize(
    "other", ["f1 0.89, 3 texts", "f1 0.87, 4 texts", "f1 0.870, 3 texts", "f1 -0.87, 3 texts", "f1 0.87", ""]
)
def test_outputs_that_differ_more_are_not_the_same(other):
    assert not same_output("f1 0.87, 3 texts\n", other)


@pytest.mark.slow
@pytest.mark.usefixtures("padding_is_masked")
@pytest.mark.filterwarnings(
    "ignore:.*many workers.*", "ignore::FutureWarning", "ignore:2 texts are longer than 512 tokens"
)
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in ELSEWHERE and has_python(name)])
def test_python_blocks_run_in_order(encoder, name, tmp_path, monkeypatch):
    # Most blocks use this model, so hold it in memory for them.
    encoder.backbone("cpu")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": name}

    for block in BLOCKS[name]:
        if block.language != "python":
            continue
        needs = set(re.findall(r"^(?:from|import) (entmax|trl|verifiers|wandb)\b", block.content, re.MULTILINE))
        if needs:
            assert needs <= NEEDS[name]
            # The output is not compared, because trainers print what they please.
            if all(find_spec(need) for need in needs):
                block.run(names)
            else:
                block.compiled()
            continue
        printed = block.run(names)
        place = f"{name}, line {block.line}, printed:\n{printed}"
        assert bool(printed) == (block.output is not None), place
        assert same_output(block.output or "", printed), place


def tiny_beam_searcher(vocab_size):
    """Return a small random model that writes with beam search by default."""
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=vocab_size, eos_token_id=102, **sizes)).eval()
    model.generation_config.num_beams = 3
    return model


def test_the_consensus_recipe_chooses_the_closest_sample(bert_score_f1):
    names = {}
    for block in BLOCKS["examples/docs/ranking.md"]:
        if block.language == "python":
            block.run(names)
    sample = names["sample"]
    model = tiny_beam_searcher(len(sample.tokenizer))
    sample.generate_kwargs["max_new_tokens"] = 3
    inputs = sample.tokenizer(["Was it here?", "It rains."], return_tensors="pt", padding=True)
    batch = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"], "labels": ["Yes.", "Rain."]}

    torch.manual_seed(1)
    preds, target = names["generate"](model, batch)
    torch.manual_seed(1)
    samples, _ = sample(model, batch)

    assert target == batch["labels"]
    assert len(set(samples)) == 32
    for group, chosen in zip((samples[:16], samples[16:]), preds, strict=True):
        f1 = bert_score_f1([text for text in group for _ in group], group * 16).view(16, 16)
        agreement = f1.sum(1) - f1.diagonal()
        assert chosen == group[int(agreement.argmax())]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """The files that the shell's commands name."""
    monkeypatch.chdir(tmp_path)
    hyps, refs = real_pairs(6)
    files = {"hyps": hyps, "other": hyps[::-1], "refs": refs, "refs2": refs, "sentences": hyps, "src": refs[::-1]}
    for name, lines in files.items():
        write_lines(tmp_path / f"{name}.txt", lines)
    samples = []
    rows = []
    for i, (candidate, reference) in enumerate(zip(hyps, refs, strict=True)):
        samples.append({"candidates": [candidate, reference]})
        facts = {"document": f"text {i}", "domain": "ab"[i % 2], "article": i // 2}
        rows.append({"candidate": candidate, "reference": reference, **facts})
    write_records(tmp_path / "samples.jsonl", samples)
    write_records(tmp_path / "pairs.jsonl", rows)
    return tmp_path


def commands(start):
    """Return the different shell commands of the pages that start with a text."""
    shell = [block.content for path in PAGES for block in blocks(path) if block.language == "console"]
    lines = "".join(shell).replace("\\\n", " ").splitlines()
    known = ("bertscore-tm ", "torchrun ", "python -m examples.", "awk ", "grep ", "jq ", "python -c ", "sed ", "tr ")
    assert all(line.startswith(known) for line in lines), lines
    return [line for line in dict.fromkeys(lines) if line.startswith(start)]


def offline(command, minilm):
    """The words of a command, with an encoder that is at hand and as few pairs as will do."""
    words = [minilm if word == "my/model" else word for word in shlex.split(command)]
    if "--model" not in words:
        words += ["--model", minilm]
    if not {"--num-layers", "-l", "baseline"} & set(words):
        words += ["--num-layers", "5"]
    if "baseline" in words:
        words += ["--pairs", "20"]
    return words


def run_shell(line, folder):
    """Run a line of a page as a shell does."""
    run_process("sh", "-c", line, folder=folder, PATH=PATH)


@pytest.mark.slow
def test_shell_commands_run_in_order(minilm, texts, capsys):
    lines = commands("bertscore-tm ")

    assert {line.split()[1] for line in lines} == {"score", "rank", "compare", "show", "baseline"}
    for line in lines:
        assert main(offline(line, minilm)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
    for name in ("scores.tsv", "alignment.png", "baseline.csv"):
        assert (texts / name).stat().st_size > 100


GENERATED = """S-1\ta c@@ at
T-1\tthe cat
H-1\t-0.3\ta cat .
D-1\t-0.3\ta cat.
P-1\t-0.1 -0.2
S-0\tHund
T-0\tthe dog
D-0\t-0.5\ta dog.
D-0\t-0.4\tdogs.
S-10\tRegen
T-10\tit rains
D-10\t-0.5\train-1.
S-2\tFisch
T-2\tfish
D-2\t-0.5\tfish.
Generate test with beam=5
"""
SEGMENTS = """<tstset setid="t" srclang="any">
<doc sysid="s" docid="x"><seg id="1">a  cat</seg>
<p>
<seg id="2"> fish &amp; chips</seg>
</p></doc>
"""


def test_files_with_marks_become_plain_lines(tmp_path):
    (tmp_path / "generate.txt").write_text(GENERATED)
    (tmp_path / "hyps.sgm").write_text(SEGMENTS)
    expected = [
        ("hyps.txt", ["a dog.", "a cat.", "fish.", "rain-1."]),
        ("refs.txt", ["the dog", "the cat", "fish", "it rains"]),
        ("hyps.txt", ["a  cat", " fish & chips"]),
    ]
    lines = [*commands("grep "), *commands("sed ")]

    for line, (name, texts) in zip(lines, expected, strict=True):
        run_shell(line, tmp_path)
        assert (tmp_path / name).read_text().splitlines() == texts


WMT = """<?xml version="1.0" encoding="utf-8"?>
<dataset id="t"><doc origlang="en" id="d">
<src lang="en"><p><seg id="1">Hund</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">a &amp; b</seg><seg id="2"/></p></ref>
<ref lang="de" translator="B"><p><seg id="1">other</seg><seg id="2">more</seg></p></ref>
<hyp system="S" lang="de"><p><seg id="1">a and b</seg></p></hyp>
</doc></dataset>
"""
SUBTITLES = """1
00:00:01,000 --> 00:00:02,500
<i>The cat</i>
sat.

2
00:00:03,000 --> 00:00:04,000
It rains.
"""
ANSWERS = {"q1": ["the cat", "a cat"], "q2": []}
QUESTIONS = [{"id": key, "question": "?", "answers": [{"text": text} for text in ANSWERS[key]]} for key in ANSWERS]
ARTICLES = [{"title": "t", "paragraphs": [{"context": "c", "qas": [question]}]} for question in QUESTIONS]
SQUAD = {"version": "1.1", "data": ARTICLES}


def test_wmt_files_of_xml_become_lines(tmp_path):
    (tmp_path / "wmt.xml").write_text(WMT)
    (line,) = commands("python -c ")

    run_shell(line, tmp_path)

    assert (tmp_path / "refs.txt").read_text().splitlines() == ["a & b", ""]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("head", ["", "\ufeff", "WEBVTT\n\n"])
def test_subtitles_become_a_line_each(tmp_path, end, head):
    (tmp_path / "hyps.srt").write_text(head + SUBTITLES, encoding="utf-8", newline=end)
    (line,) = commands("tr ")

    run_shell(line, tmp_path)

    assert (tmp_path / "hyps.txt").read_text().splitlines() == ["The cat sat.", "It rains."]


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_answers_of_squad_are_joined_by_question(tmp_path, monkeypatch, minilm, capsys):
    monkeypatch.chdir(tmp_path)
    Path("dev.json").write_text(json.dumps(SQUAD))
    Path("predictions.json").write_text(json.dumps({"q2": "", "q1": "a cat"}))
    (line,) = commands("jq ")
    page = (ROOT / "examples/docs/shell.md").read_text("utf-8")
    (words,) = re.findall(r"`(score predictions.json refs.json)`", page)

    run_shell(line, tmp_path)
    exit_code = main([*words.split(), "-m", minilm, "-l", "2", "--per-segment", "-o", "scores.csv"])

    assert exit_code == 0
    assert json.loads(Path("refs.json").read_text()) == ANSWERS
    rows = [row.split(",") for row in Path("scores.csv").read_text().splitlines()[1:]]
    assert [(row[0], row[5]) for row in rows] == [("q2", "0.000000"), ("q1", "1.000000")]


def test_texts_without_a_reference_are_filtered(tmp_path):
    write_lines(tmp_path / "hyps.txt", ["a cat", "it\train", "", '"quoted', "fish"])
    write_lines(tmp_path / "refs.txt", ["the cat", "", "the dog", " \t", "fish and\tchips"])

    for line in commands("awk "):
        run_shell(line, tmp_path)

    assert (tmp_path / "kept-hyps.txt").read_text().splitlines() == ["a cat", "", "fish"]
    assert (tmp_path / "kept-refs.txt").read_text().splitlines() == ["the cat", "the dog", "fish and\tchips"]


SCORE, RANK = sorted(commands("torchrun "), key=lambda command: " score " not in command)


def arguments_in(words):
    """Return the arguments of the package's command in those of torchrun."""
    return words[words.index("bertscore_tm.cli") + 1 :]


@pytest.mark.slow
@pytest.mark.distributed
def test_torchrun_prints_what_one_process_prints(minilm, texts, capsys):
    words = offline(SCORE, minilm)

    printed = run_torchrun_command(words, texts)

    assert printed.exit_code == 0, printed.err
    assert main(arguments_in(words)) == 0
    assert printed.out == capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_write_the_ranking_of_one_process(minilm, texts):
    arguments = arguments_in(offline(RANK, minilm))

    first, second = run_on_ranks(texts, arguments, arguments)

    assert (first.exit_code, second.exit_code) == (0, 0), first.err + second.err
    of_ranks = (texts / "best.jsonl").rename(texts / "of_ranks.jsonl").read_text()
    assert main(arguments) == 0
    assert of_ranks == (texts / "best.jsonl").read_text()
    assert len(of_ranks.splitlines()) == 6


def test_make_has_the_targets():
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", rules, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", rules, re.MULTILINE))
    pages = "".join(page.read_text("utf-8") for page in markdown_files())

    shown = re.findall(r"`make ([^`\n]+)`", pages)

    assert shown
    for words in shown:
        for word in shlex.split(words):
            name, equals, _ = word.partition("=")
            if equals:
                assert name in variables, words
            else:
                assert name in targets, words


def test_links_lead_somewhere():
    broken = []
    for page in markdown_files():
        for link in links(page):
            file, _, anchor = link.partition("#")
            target = page
            if file:
                target = (page.parent / file).resolve()
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")

    assert not broken


def test_every_page_is_linked_from_the_readme():
    linked = {link.partition("#")[0] for link in links(README)}
    assert {path.relative_to(ROOT).as_posix() for path in PAGES} <= linked
