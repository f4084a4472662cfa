"""Best-of-n distillation: made candidates and chosen targets."""

import json
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

from bertscore_tm import bert_score
from bertscore_tm.losses import (
    Candidates,
    DistilledDataset,
    choose_targets,
    distillation,
    make_candidates,
    read_candidates,
)
from tests.metric.test_interrupted import die
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer
from tests.support.ranks import run_ranks
from tests.support.separate_ranks import run_separate_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = [{"text": text} for text in ("a cat sat", "it rains", "names of files", "the sum", "hello", "a list", "x y z")]
OPTIONS = {"num_candidates": 3, "max_new_tokens": 5, "batch_size": 2}


def make_model(seed=0):
    model = randomised(AutoModelForSeq2SeqLM.from_config(tiny_config("bart")))
    with torch.no_grad():
        next(model.parameters()).mul_(1 - seed / 10)
    # Half of the tokens end a text.
    model.generation_config.eos_token_id = list(range(2, 80, 2))
    model.generation_config.forced_eos_token_id = None
    model.generation_config.decoder_start_token_id = 0
    return model


def make_tokenizer():
    return tiny_tokenizer(EVERY_FAMILY["bart"])


def collate(rows):
    return dict(make_tokenizer()([row["text"] for row in rows], padding=True, return_tensors="pt"))


def make(path, model=None, **options):
    return make_candidates(model or make_model(), make_tokenizer(), DATA, collate, path, **OPTIONS | options)


def make_in_a_rank(rank, path):
    torch.manual_seed(rank)
    return make(path)


def test_candidates_are_complete_samples_and_the_greedy_text(tmp_path, capsys):
    path, model = tmp_path / "candidates.jsonl", make_model()
    torch.manual_seed(5)
    expected_draw = torch.rand(1)
    torch.manual_seed(5)
    made = make(path, model, verbose=True)
    assert torch.rand(1) == expected_draw
    assert "4/4" in capsys.readouterr().err
    assert len(made) == len(DATA)
    counts = [len(one.candidates) for one in made]
    # Texts without an end token are left out, and counted.
    assert 0 < sum(counts) < 3 * len(DATA)
    assert [count + one.num_cut_off for count, one in zip(counts, made, strict=True)] == [3] * len(DATA)
    tokenizer = make_tokenizer()
    inputs = collate(DATA[2:3])
    greedy = model.generate(**inputs, max_new_tokens=5, do_sample=False, num_beams=1)
    assert made[2].greedy == tokenizer.decode(greedy[0, 1:], skip_special_tokens=True)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["index"] for record in records] == list(range(len(DATA)))
    assert read_candidates(path) == made
    assert sorted(file.name for file in tmp_path.iterdir()) == ["candidates.jsonl", "candidates.jsonl.settings.json"]
    assert make(tmp_path / "new" / "other.jsonl", seed=1) != made


def test_a_stopped_run_goes_on_with_the_same_candidates(tmp_path, monkeypatch):
    whole = make(tmp_path / "whole.jsonl")
    sample, calls = distillation._sample, []

    def stopping(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args)

    monkeypatch.setattr(distillation, "_sample", stopping)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "stopped.jsonl")
    (partial,) = tmp_path.glob(".stopped*.partial")
    with partial.open("a") as file:
        file.write('[{"index": 4')
    assert make(tmp_path / "stopped.jsonl") == whole
    # The third batch again, and the fourth.
    assert len(calls) == 5
    # A complete file is read.
    assert make(tmp_path / "stopped.jsonl") == whole
    assert len(calls) == 5
    with pytest.raises(ValueError, match=r"stopped.jsonl was made with a different num_candidates, seed\. Read it"):
        make(tmp_path / "stopped.jsonl", num_candidates=4, seed=1)
    with pytest.raises(ValueError, match=r"was made with a different model\. "):
        make(tmp_path / "stopped.jsonl", model=make_model(seed=1))
    (tmp_path / "stopped.jsonl.settings.json").unlink()
    with pytest.raises(ValueError, match=r"stopped.jsonl has no stopped.jsonl.settings.json next to it"):
        make(tmp_path / "stopped.jsonl")


def test_a_second_run_is_refused_while_one_writes(tmp_path, monkeypatch):
    sample, refused = distillation._sample, []

    def start_again(*args):
        with pytest.raises(OSError, match=r"another run is writing .*candidates\.jsonl\.0\.partial: wait"):
            make(tmp_path / "candidates.jsonl")
        refused.append(args)
        return sample(*args)

    monkeypatch.setattr(distillation, "_sample", start_again)
    assert len(make(tmp_path / "candidates.jsonl")) == len(DATA)
    assert len(refused) == 4


@pytest.mark.parametrize("changed", [0, 3, -1, "language"])
def test_candidates_of_other_examples_or_languages_are_not_read(tmp_path, monkeypatch, changed):
    path, model = tmp_path / "candidates.jsonl", make_model()
    make(path, model)
    if changed == "language":
        model.generation_config.forced_bos_token_id = 9
    else:
        others = list(DATA)
        others[changed] = {"text": "rain"}
        monkeypatch.setitem(globals(), "DATA", others)
    with pytest.raises(ValueError, match=f"a different {'special tokens' if changed == 'language' else 'examples'}"):
        make(path, model)


def test_a_saved_model_is_recognized_with_any_number_of_threads(tmp_path):
    sizes = {"d_model": 64, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    model = randomised(T5ForConditionalGeneration(T5Config(vocab_size=4000, eos_token_id=1, **sizes)))
    made = make(tmp_path / "candidates.jsonl", model)
    model.save_pretrained(tmp_path / "model")
    torch.set_num_threads(2)  # one_thread restores it
    loaded = T5ForConditionalGeneration.from_pretrained(tmp_path / "model")
    assert make(tmp_path / "candidates.jsonl", model) == make(tmp_path / "candidates.jsonl", loaded) == made


def test_random_states_and_modes_are_untouched(tmp_path):
    def draw(rows):
        drawn = [random.randrange(100), int(np.random.randint(100)), int(torch.randint(100, ()))]
        return collate([{"text": f"{row['text']} {drawn}"} for row in rows])

    def states(model):
        modes = [part.training for part in model.modules()]
        return [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist(), modes]

    path, model = tmp_path / "candidates.jsonl", make_model().train()
    next(model.children()).eval()
    before = states(model)
    made = make_candidates(model, make_tokenizer(), DATA, draw, path, **OPTIONS)
    assert states(model) == before
    random.random(), np.random.rand(), torch.rand(1)
    # The same draws, so the file is of the same examples.
    assert make_candidates(model, make_tokenizer(), DATA, draw, path, **OPTIONS) == made
    assert make_candidates(model, make_tokenizer(), DATA, draw, tmp_path / "new.jsonl", **OPTIONS) == made


def test_labels_and_decoder_inputs_of_a_collator_do_not_reach_the_candidates(tmp_path):
    def collate_for_training(rows):
        inputs = collate(rows)
        return inputs | {"labels": inputs["input_ids"], "decoder_input_ids": inputs["input_ids"]}

    path = tmp_path / "candidates.jsonl"
    made = make_candidates(make_model(), make_tokenizer(), DATA, collate_for_training, path, **OPTIONS)
    assert made == make(tmp_path / "plain.jsonl")


def test_overwriting_replaces_candidates_of_other_settings_only(tmp_path, monkeypatch):
    path = tmp_path / "candidates.jsonl"
    first = make(path)
    sample, calls = distillation._sample, []
    monkeypatch.setattr(distillation, "_sample", lambda *args: calls.append(args) or sample(*args))
    assert make(path, overwrite=True) == first
    assert not calls
    write = distillation.write_atomically

    def stopping(target):
        if target == path:
            raise KeyboardInterrupt
        return write(target)

    # The settings are written and the candidates are not.
    with monkeypatch.context() as patched:
        patched.setattr(distillation, "write_atomically", stopping)
        with pytest.raises(KeyboardInterrupt):
            make(path, overwrite=True, seed=1)
    replaced = make(path, overwrite=True, seed=1)
    assert replaced == make(tmp_path / "fresh.jsonl", seed=1)
    assert replaced == read_candidates(path) != first


def test_candidates_of_another_model_are_not_resumed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(distillation, "_merge", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "candidates.jsonl", model=make_model(seed=1))
    assert make(tmp_path / "candidates.jsonl") == make(tmp_path / "fresh.jsonl")


@pytest.mark.distributed
def test_two_ranks_make_what_one_does(tmp_path):
    alone = make(tmp_path / "one.jsonl")
    first, second = run_ranks(make_in_a_rank, 2, str(tmp_path / "two.jsonl"))
    assert first == second == alone
    # A finished file is read on any number of ranks.
    assert make(tmp_path / "two.jsonl") == alone
    assert run_ranks(make_in_a_rank, 2, str(tmp_path / "one.jsonl")) == [alone, alone]


def make_with_another_model(rank, path):
    with pytest.raises(ValueError, match="the ranks have different models, examples or settings"):
        make(path, make_model(seed=rank))


@pytest.mark.distributed
def test_ranks_with_different_models_are_refused(tmp_path):
    run_ranks(make_with_another_model, 2, str(tmp_path / "candidates.jsonl"))
    assert not list(tmp_path.iterdir())


def die_while_writing(rank, report, path):
    append = distillation.append_lines

    def dying(part, lines):
        if rank == dist.get_world_size() - 1 and part.exists() and len(part.read_bytes().splitlines()) == 2:
            # Half of the line has reached the disk.
            with part.open("a") as file:
                file.write(lines[0][: len(lines[0]) // 2])
            die()
        append(part, lines)

    distillation.append_lines = dying
    make(path)


@pytest.mark.distributed
@pytest.mark.parametrize("size", [1, 2])
def test_killed_ranks_go_on_with_the_same_candidates(tmp_path, size):
    alone = make(tmp_path / "one.jsonl")
    path = tmp_path / "killed.jsonl"
    *_, ended = run_separate_ranks(die_while_writing, size, path)
    assert ended.exit_code == -signal.SIGKILL
    assert not path.exists()
    assert run_ranks(make_in_a_rank, size, path) == [alone] * size
    assert path.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_parts_of_another_number_of_ranks_are_removed(tmp_path):
    (tmp_path / ".candidates.jsonl.1.partial").write_text("settings\n")
    make(tmp_path / "candidates.jsonl")
    assert not list(tmp_path.glob(".*"))


def test_processes_without_a_group_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"several processes would write .* call make_candidates after"):
        make(tmp_path / "candidates.jsonl")
    monkeypatch.setenv("WORLD_SIZE", "1")
    made = make(tmp_path / "candidates.jsonl")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert make(tmp_path / "candidates.jsonl") == made


def test_a_model_without_an_end_token_is_refused(tmp_path):
    model = make_model()
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="no eos_token_id, so every text would be cut off"):
        make(tmp_path / "candidates.jsonl", model)


def test_targets_beat_the_greedy_text(encoder):
    references = ["the cat sat down", ["it rains", "it is raining"], "a list of names", "stocks fell"]
    candidates = [
        Candidates("a dog", ["a cat sat", "the cat sat", "", "the cat " * 9]),
        Candidates("it rains", ["it rains", "it snows"]),
        Candidates("a list", []),
        Candidates("stocks", ["stocks rose", "stocks fell today"]),
    ]
    chosen = choose_targets(candidates, references, encoder)
    assert chosen.targets == ["the cat sat", None, None, "stocks fell today"]
    f1 = bert_score(["the cat sat", "a dog"], ["the cat sat down"] * 2, encoder)["f1"]
    assert chosen.gains[0].item() == pytest.approx((f1[0] - f1[1]).item(), abs=1e-6)
    assert chosen.gains.isnan().tolist() == [False, True, True, False]
    assert chosen.num_refused == 2
    assert chosen.mean_gain == pytest.approx((chosen.gains[0] + chosen.gains[3]).item() / 2)
    assert str(chosen).startswith(f"2 of 4 targets replaced, {chosen.mean_gain:.4f} above the greedy text on average")
    least = float(chosen.gains[0]) + 1e-4
    stricter = choose_targets(candidates, references, encoder, min_gain=least)
    assert stricter.targets[0] is None
    none = choose_targets(candidates[1:3], references[1:3], encoder)
    assert (str(none), none.mean_gain) == ("0 of 2 targets replaced; candidates refused: 0", 0)
    assert choose_targets(candidates, references, encoder, max_repetition=0.0).targets == chosen.targets
    loose = choose_targets(candidates, references, encoder, max_repetition=1.0)
    assert loose.num_refused == 1
    cut_off = [replace(one, num_cut_off=2) for one in candidates]
    assert choose_targets(cut_off, references, encoder).num_refused == 2 + 2 * 4


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("今天下雨" * 4, True),
        ("ฝนตก" * 4, True),
        ("雨が降る。" * 3, True),
        ("中国气象局预计今天北京有小到中雨，请市民出行携带雨具。", False),
        ("วันนี้ฝนตกหนักในกรุงเทพ", False),
        ("비가 옵니다 " * 5, True),
        # One 4-gram of five is repeated; then three words only.
        ("the cat sat on the cat sat on", True),
        ("the cat sat and the cat sat", False),
        ("오늘은 비가 오고 내일은 맑겠습니다", False),
    ],
)
def test_repetition_is_found_in_scripts_without_spaces(encoder, text, is_refused):
    chosen = choose_targets([Candidates("a cat", [text])], [text], encoder)
    assert chosen.num_refused == is_refused
    assert chosen.targets == [None if is_refused else text]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: make("x.jsonl", num_candidates=0), "num_candidates must be at least 1, got 0"),
        (lambda: choose_targets([Candidates("a", [])], ["a", "b"]), "candidates of 1 examples and references of 2"),
        (lambda: choose_targets([], [], min_gain=-1.0), "min_gain must be at least 0"),
        (lambda: DistilledDataset([1], []), "targets must have one entry per example, got 0 for 1 examples"),
        (lambda: DistilledDataset([1], [None], probability=2.0), "probability must be between 0 and 1, got 2.0"),
    ],
)
def test_errors_name_the_argument(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_inputs_that_are_not_tensors_are_named(tmp_path):
    def with_texts(rows):
        return {**collate(rows), "summary": [row["text"] for row in rows]}

    with pytest.raises(TypeError, match="collate must return the model's inputs only, as tensors: leave out summary"):
        make_candidates(make_model(), make_tokenizer(), DATA, with_texts, tmp_path / "x.jsonl", **OPTIONS)
