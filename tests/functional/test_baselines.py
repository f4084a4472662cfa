"""Baselines: the mean over random pairs as the reference package scores them, its error, and resuming."""

import copy
import itertools
import json
from collections import Counter

import bert_score as oracle_package
import pytest
import torch
from scipy import stats
from transformers import PreTrainedModel

from bertscore_tm import Baseline, FrozenEncoder, bert_score
from bertscore_tm.baselines import make_baseline
from bertscore_tm.scoring.corpus import CorpusScores, score_corpus
from bertscore_tm.scoring.token_weights import token_weights
from tests.support.models import tiny_model
from tests.support.texts import real_pairs

TEXTS = real_pairs(40)[0]


@pytest.fixture(scope="module")
def all_layers(minilm) -> FrozenEncoder:
    return FrozenEncoder(minilm, all_layers=True)


@pytest.fixture(scope="module")
def tiny(one_thread) -> FrozenEncoder:
    return FrozenEncoder(*tiny_model("bert"), all_layers=True)


class Recorder:
    """Scores pairs and remembers them; can be interrupted before any of its calls."""

    def __init__(self, encoder: FrozenEncoder, interrupt_before: int | None = None) -> None:
        self.encoder, self.interrupt_before = encoder, interrupt_before
        self.calls: list[int] = []
        self.pairs: list[tuple[str, str]] = []

    def __call__(self, texts):
        if len(self.calls) == self.interrupt_before:
            raise KeyboardInterrupt
        self.calls.append(len(texts))
        self.pairs += [(candidate, only) for candidate, (only,) in zip(texts.candidates, texts.references, strict=True)]
        return score_corpus(texts, self.encoder, token_weights(self.encoder))


def test_mean_and_error_are_those_of_the_reference_package(all_layers, minilm):
    recorder = Recorder(all_layers)
    texts = [" ".join(text.split()[:8]) for text in TEXTS]
    made = make_baseline(all_layers, texts, 10, save_every=4, score=recorder)
    assert recorder.calls == [4, 4, 2]
    scorer = oracle_package.BERTScorer(minilm, num_layers=6, all_layers=True, nthreads=0, device="cpu")
    candidates, references = map(list, zip(*recorder.pairs, strict=True))
    # Shape (layers, pairs) each; every pair in a separate batch, without padding.
    scores = torch.stack(scorer.score(candidates, references, batch_size=1)).double()
    assert scores.shape == (3, 7, 10)
    assert made.mean.shape == made.standard_error.shape == (7, 3)
    assert (made.mean - scores.mean(-1).T).abs().max() < 1e-6
    errors = stats.sem(scores.numpy(), axis=-1)
    assert (made.standard_error - torch.from_numpy(errors).T).abs().max() < 1e-6


def test_pairs_are_different_texts_and_all_equally_likely(tiny):
    texts = TEXTS[:5]
    recorder = Recorder(tiny)
    make_baseline(tiny, texts, 2000, score=recorder)
    found = Counter(recorder.pairs)
    possible = list(itertools.permutations(texts, 2))
    assert set(found) == set(possible)
    assert stats.chisquare([found[pair] for pair in possible]).pvalue > 0.001


def test_error_says_how_far_the_mean_is_from_the_expected_score(tiny):
    texts = TEXTS[:12]
    possible = list(itertools.permutations(texts, 2))
    scores = bert_score([a for a, _ in possible], [b for _, b in possible], tiny)
    table = torch.stack([scores[name] for name in ("precision", "recall", "f1")])
    number = {pair: i for i, pair in enumerate(possible)}

    def look_up(pairs):
        rows = [number[candidate, only] for candidate, (only,) in zip(pairs.candidates, pairs.references, strict=True)]
        return CorpusScores(table[..., rows], torch.zeros(len(table[0]), len(rows)), 0)

    deviations = []
    for seed in range(200):
        made = make_baseline(tiny, texts, 60, seed, score=look_up)
        deviations.append((made.mean - table.double().mean(-1).T) / made.standard_error)
    # In units of their standard errors, deviations have a mean square of 1, here give or take 0.1.
    mean_square = torch.stack(deviations).square().mean(0)
    assert 0.7 < mean_square.min() <= mean_square.max() < 1.4


def test_resumed_run_gives_exactly_the_uninterrupted_table(tiny, tmp_path):
    state = tmp_path / "table.csv.partial.json"
    whole = make_baseline(tiny, TEXTS, 50, save_every=8)
    interrupted = Recorder(tiny, interrupt_before=3)
    with pytest.raises(KeyboardInterrupt):
        make_baseline(tiny, TEXTS, 50, save_every=8, state_path=state, score=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == [state.name]
    # Interrupted once more, before anything was done.
    with pytest.raises(KeyboardInterrupt):
        make_baseline(tiny, TEXTS, 50, save_every=8, state_path=state, score=Recorder(tiny, interrupt_before=0))
    resumed, progress = Recorder(tiny), []
    made = make_baseline(tiny, TEXTS, 50, save_every=8, state_path=state, score=resumed, progress=progress.append)
    assert resumed.calls == [8, 8, 8, 2]
    assert progress == [24, 8, 8, 8, 2]
    assert torch.equal(made.mean, whole.mean)
    assert torch.equal(made.standard_error, whole.standard_error)
    assert made.to_csv() == whole.to_csv()
    # A finished state is the result.
    nothing = Recorder(tiny)
    finished = make_baseline(tiny, TEXTS, 50, save_every=8, state_path=state, score=nothing)
    assert nothing.calls == []
    assert torch.equal(finished.mean, whole.mean)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "seed=0, but the call has 1"),
        ({"texts": TEXTS[1:]}, "texts="),
        ({"encoder": "roberta"}, "signature="),
    ],
)
def test_a_state_of_other_settings_is_refused(tiny, tmp_path, changed, message):
    state = tmp_path / "state.json"
    settings = {"encoder": tiny, "texts": TEXTS, "num_pairs": 10, "seed": 0, "save_every": 5, "state_path": state}
    make_baseline(**settings)
    before = state.read_bytes()
    if "encoder" in changed:
        changed = {"encoder": FrozenEncoder(*tiny_model(changed["encoder"]), all_layers=True)}
    with pytest.raises(ValueError, match=rf"state\.json is the state .* with {message}.* delete the file"):
        make_baseline(**(settings | changed))
    assert state.read_bytes() == before


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"settings": {}, "num_pairs": 3})])
def test_a_file_that_is_no_state_is_refused(tiny, tmp_path, content):
    state = tmp_path / "state.json"
    state.write_text(content)
    with pytest.raises(ValueError, match=r"state\.json is not the state of an unfinished baseline"):
        make_baseline(tiny, TEXTS, 10, state_path=state)
    assert state.read_text() == content


def test_repeated_and_blank_texts_are_left_out_and_long_ones_counted(tiny):
    texts = [*TEXTS[:3], " ".join(TEXTS), "half \ud800 a pair"]
    odd = ["", "  ", "\u200b", *texts, texts[0] + " ", f"\t{texts[2]}"]
    made, clean, other = make_baseline(tiny, odd, 30), make_baseline(tiny, texts, 30), make_baseline(tiny, texts, 30, 4)
    assert (made.num_texts, made.num_truncated) == (5, 1)
    assert torch.equal(made.mean, clean.mean)
    assert (made.mean != other.mean).all()


def test_table_is_read_back_and_moves_unrelated_texts_to_zero(all_layers, minilm, tmp_path):
    recorder = Recorder(all_layers)
    made = make_baseline(all_layers, TEXTS, 30, score=recorder)
    path = tmp_path / "minilm.csv"
    path.write_text(made.to_csv())
    assert (Baseline.read(path).table - made.mean).abs().max() <= 5e-7
    candidates, references = map(list, zip(*recorder.pairs, strict=True))
    scores = bert_score(candidates, references, FrozenEncoder(minilm, num_layers=5), rescale=path)
    for name in ("precision", "recall", "f1"):
        assert scores[name].mean().item() == pytest.approx(0, abs=1e-5)


def draw_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with random norms, which change the similarities of vectors as trained ones do."""
    copied = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for name, parameter in copied.named_parameters():
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.normal_(mean=1, std=0.7)
    return copied


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "t5", "deberta-v2"])
def test_the_table_of_a_family_moves_unrelated_texts_to_zero_at_every_layer(family, tmp_path):
    model, tokenizer = draw_norms(tiny_model(family)[0]), tiny_model(family)[1]
    recorder = Recorder(FrozenEncoder(model, tokenizer, all_layers=True))
    made = make_baseline(recorder.encoder, [" ".join(text.split()[:8]) for text in TEXTS], 20, score=recorder)
    path = tmp_path / "table.csv"
    path.write_text(made.to_csv())
    candidates, references = map(list, zip(*recorder.pairs, strict=True))
    standard_error = made.standard_error / (1 - made.mean)
    for layer, errors in enumerate(standard_error):
        encoder = FrozenEncoder(model, tokenizer, num_layers=layer)
        scores = bert_score(candidates, references, encoder, rescale=path)
        for name, error in zip(("precision", "recall", "f1"), errors.tolist(), strict=True):
            assert error > 0
            # The same pairs as in the table: what is left is rounding.
            assert abs(scores[name].mean().item()) < error / 100


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"texts": ["a cat", "", " a cat "]}, "at least 2 distinct texts that are not blank, got 1"),
        ({"texts": []}, "got 0"),
        ({"num_pairs": 1}, "num_pairs must be at least 2, got 1"),
        ({"save_every": 0}, "save_every must be at least 1, got 0"),
    ],
)
def test_bad_arguments(tiny, changed, message):
    with pytest.raises(ValueError, match=message):
        make_baseline(**({"encoder": tiny, "texts": TEXTS} | changed))


def test_one_layer_and_a_name_make_no_table(encoder):
    for wrong in (encoder, encoder.name):
        with pytest.raises(ValueError, match=r"pass FrozenEncoder\(model, all_layers=True\)"):
            make_baseline(wrong, TEXTS)
