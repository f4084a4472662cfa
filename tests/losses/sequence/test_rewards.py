"""BERTScoreReward: the metric's numbers as rewards, called as TRL calls reward functions, and its guards."""

import copy
import math
import pickle
import warnings
from collections import Counter

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score, rank_candidates
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from tests.support.models import counted_texts
from tests.support.oracle import oracle_scores
from tests.support.rewards import TOLERANCE, say
from tests.support.texts import several_references

LENGTHS = ["cat", "a cat", "a cat sat", "a cat sat on the mat", "a cat sat on the mat and a cat sat on the mat again"]
SEVERAL = [
    ["the cat sat"],
    ["the cat sat", "the cat sat on the mat"],
    ["cats"],
    ["a cat sat on the mat"],
    ["the cat sat"],
]


@pytest.mark.parametrize("idf", [False, True], ids=["one reference", "several and idf"])
def test_rewards_are_those_of_the_reference_package(minilm, corpus, table, idf):
    candidates, references = corpus
    weighted = False
    if idf:
        weighted = references
        references = several_references(references)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how the other package reads its table
        expected = oracle_scores(minilm, candidates, references, 4, idf=weighted, table=table)
    encoder = FrozenEncoder(minilm, num_layers=4)
    options = {"idf": weighted, "rescale": table, "references_reduce": "max"}

    for component, scores in zip(("precision", "recall", "f1"), expected, strict=True):
        reward = BERTScoreReward(encoder, component=component, **options)
        rewards = torch.tensor(reward(candidates, references))
        torch.testing.assert_close(rewards, scores, atol=2e-6, rtol=0)


@pytest.mark.parametrize("component", ["f1", "precision", "recall"])
def test_called_as_trl_calls_reward_functions(encoder, corpus, component):
    # Every prompt comes as often as there are generations, with its columns.
    candidates = corpus[0][:4]
    references = [text for text in corpus[1][:2] for _ in range(2)]
    columns = {"references": references, "difficulty": [1] * 4, "prompts": ["Say something."] * 4}
    columns |= {"trainer_state": object(), "log_extra": print, "log_metric": print}
    reward = BERTScoreReward(encoder, component=component)

    assert reward.__name__ == f"bertscore_{component}_layer{encoder.num_layers}"
    rewards = reward(completions=candidates, completion_ids=[[1, 2, 3]] * 4, **columns)
    assert rewards == pytest.approx(bert_score(candidates, references, encoder)[component].tolist(), abs=TOLERANCE)


def test_the_column_of_the_references_has_any_name(encoder, corpus):
    candidates = corpus[0][:3]
    references = corpus[1][:3]
    columns = {"answer": references, "prompts": ["?"] * 3}
    reward = BERTScoreReward(encoder, references_column="answer")
    expected = BERTScoreReward(encoder)(candidates, references)

    assert reward(completions=candidates, **columns) == reward(candidates, references) == expected
    assert reward(completions=candidates, references=["no"] * 3, **columns) == expected
    message = r"no column 'references' with the references among \['answer', 'prompts'\]\. .*references_column='answer'"
    with pytest.raises(ValueError, match=message):
        BERTScoreReward(encoder)(completions=candidates, **columns)


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_f1_beside_its_pole_is_that_of_a_ranking(minilm, table, reduce):
    last = FrozenEncoder(minilm, num_layers=6)
    # Unrelated texts first, for which the formula gives more than for a paraphrase.
    candidates = ["rain", "Creates an SSL context with defaults."]
    references = ["Create a SSLContext object with default settings.", "a cat sat on the mat"]
    [ranked] = rank_candidates([candidates], [references], last, references_reduce=reduce).scores
    expected = ranked.tolist()
    reward = BERTScoreReward(last, references_reduce=reduce)

    assert reward(candidates, [references] * 2) == pytest.approx(expected, abs=TOLERANCE)
    assert expected[0] < 0.1 < expected[1]
    # Rescaling comes last.
    rescaled = BERTScoreReward(last, references_reduce=reduce, rescale=table)
    expected_rescaled = [(score - 0.35) / 0.65 for score in expected]
    assert rescaled(candidates, [references] * 2) == pytest.approx(expected_rescaled, abs=1e-5)


def test_references_are_kept_for_later_calls(minilm, corpus):
    encoder = FrozenEncoder(minilm, num_layers=3)
    reward = BERTScoreReward(encoder)
    first = reward(corpus[0], corpus[1])
    with counted_texts() as encoded:
        assert reward(corpus[0], corpus[1]) == first

    assert encoded == Counter(map(tuple, encoder.tokenizer(sorted(set(corpus[0]))).rows()))
    assert first == pytest.approx(BERTScoreReward(encoder, cache_bytes=0)(corpus[0], corpus[1]), abs=TOLERANCE)
    assert {*encoder.cache("cpu", of_losses=True).get(corpus[1])} == {*corpus[1]}


def test_texts_that_are_cut_are_told_of_once(minilm):
    short = FrozenEncoder(minilm, num_layers=1, max_length=6)
    with warnings.catch_warnings(record=True, action="default") as caught:
        for count in (1, 2, 3):
            candidates = ["one two three four five six"] * count
            references = [f"{count} two three four five six"] * count
            BERTScoreReward(short)(candidates, references)

    assert [str(warning.message).split(".")[0] for warning in caught] == [
        "texts longer than 6 tokens were truncated, so the rest is not rewarded"
    ]
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="1 text of idf is longer than 6 tokens"):
        BERTScoreReward(short, idf=["one two three four five six"])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda reward: pickle.loads(pickle.dumps(reward))])
def test_copies_give_the_same_rewards(encoder, corpus, table, way):
    options = {"component": "recall", "idf": corpus[1], "rescale": table, "cache_bytes": 2**26, "name": "guarded"}
    reward = BERTScoreReward(encoder, length_band=(0.8, 1.2), repeat_ngram_size=3, **options)
    again = way(reward)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = reward(corpus[0], corpus[1])

    assert again(corpus[0], corpus[1]) == pytest.approx(expected, abs=TOLERANCE)
    assert again.__name__ == reward.__name__ == "guarded"
    assert repr(again) == repr(reward)
    assert len(pickle.dumps(reward)) < 5_000_000  # the tokenizer; the weights alone are 70 MB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"component": "F"}, "component='F' is not one of 'precision', 'recall', 'f1'"),
        *(({"length_band": band}, "length_band must be") for band in ((1.5, 0.5), (0, 0), (math.nan, 1))),
        ({"references_reduce": "min"}, "references_reduce='min' is not one of 'mean', 'max'"),
        ({"repeat_ngram_size": 0}, "repeat_ngram_size must be at least 1, got 0"),
    ],
)
def test_wrong_settings(encoder, options, message):
    with pytest.raises(ValueError, match=message):
        BERTScoreReward(encoder, **options)


def test_a_token_without_a_weight_is_an_error_as_in_a_ranking(encoder):
    idf = dict.fromkeys(encoder.tokenizer(["a cat sat"]).ids.tolist(), 1.0)
    reward = BERTScoreReward(encoder, idf=idf)

    assert reward(["a cat sat"], ["a cat"]) == pytest.approx(
        rank_candidates([["a cat sat"]], ["a cat"], encoder, idf=idf).scores[0].tolist(), abs=TOLERANCE
    )
    for texts in (["a dog sat"], ["a cat sat"]), (["a cat sat"], ["a dog sat"]):
        with pytest.raises(ValueError, match=r"idf has no weight for token id \d+ \('dog'\)\. Pass a mapping"):
            reward(*texts)


def factor_of_ratio(ratio, low, high):
    """The factor of a ratio of lengths: 1 within the band, and smaller the farther it is outside."""
    if ratio < low:
        return ratio / low
    return min(1, high / ratio)


def slow_guard(encoder, candidate, references, band, size):
    """Both factors, as the docstring writes them."""
    tokenize = encoder.tokenizer.tokenizer.tokenize
    factor = 1.0
    tokens = tokenize(candidate)
    if band is not None:
        ratios = [len(tokens) / len(tokenize(reference)) for reference in references]
        factor *= max(factor_of_ratio(ratio, *band) for ratio in ratios)
    if size is not None and len(tokens) >= size:
        ngrams = [" ".join(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        factor *= len({*ngrams}) / len(ngrams)
    return factor


# Rescaled, some rewards are negative, which a guard lowers too.
@pytest.mark.parametrize("baseline", [0, 0.9])
@pytest.mark.parametrize(
    ("band", "size"), [(None, None), ((0.5, 1.5), None), ((1, 1), 1), (None, 2), ((0, 2), 4), ((0.9, math.inf), 2)]
)
def test_guards_are_the_equations(encoder, tmp_path, baseline, band, size):
    path = tmp_path / "table.csv"
    rows = [f"{layer},{baseline},{baseline},{baseline}\n" for layer in range(6)]
    path.write_text("LAYER,P,R,F\n" + "".join(rows))
    plain = BERTScoreReward(encoder, rescale=path)(LENGTHS, SEVERAL)

    assert (min(plain) < -0.5) == (baseline > 0)
    result = BERTScoreReward(encoder, rescale=path, length_band=band, repeat_ngram_size=size)(LENGTHS, SEVERAL)
    factors = [slow_guard(encoder, text, texts, band, size) for text, texts in zip(LENGTHS, SEVERAL, strict=True)]
    expected = [score - (1 - factor) * abs(score) for factor, score in zip(factors, plain, strict=True)]
    assert result == pytest.approx(expected, abs=1e-5)
    assert (min(factors) < 1) == (band is not None or size is not None)


def test_empty_texts_are_worth_nothing_with_and_without_guards(encoder, table):
    with warnings.catch_warnings(action="error"):
        assert BERTScoreReward(encoder)(["", "a cat", " "], ["a dog", "", ""]) == [0, 0, 0]
        assert BERTScoreReward(encoder, rescale=table)([""], ["a dog"]) == pytest.approx([-19 / 41], abs=TOLERANCE)
    # Without an upper end no text is too long, not even for an empty reference.
    open_end = BERTScoreReward(encoder, length_band=(0.5, math.inf), rescale=table)

    assert open_end(["a cat"], [""]) == BERTScoreReward(encoder, rescale=table)(["a cat"], [""])
    guards = {"length_band": (0.5, 2), "repeat_ngram_size": 2}
    assert BERTScoreReward(encoder, **guards)(["", "", "a cat sat on the mat"], ["", "a cat", ""]) == [0, 0, 0]
    rescaled = BERTScoreReward(encoder, **guards, rescale=table, component="precision")
    assert rescaled([""], ["a cat"]) == pytest.approx([-2 * 0.35 / 0.65], abs=TOLERANCE)


def test_the_guard_of_length_sees_what_the_encoder_does_not(minilm):
    reward = BERTScoreReward(FrozenEncoder(minilm, num_layers=1, max_length=8), length_band=(0.5, 1.5))
    reference = "one two three four five six"
    tail = " and so on" * 20

    with pytest.warns(UserWarning, match="were truncated"):
        result = reward([reference, reference + tail], [reference] * 2)
    assert result[0] == pytest.approx(1, abs=TOLERANCE)
    assert result[1] == pytest.approx(1.5 * 6 / 66, abs=TOLERANCE)


TOLD = ["a cat sat on the mat", "it rains it rains it rains it rains", "snow", "he works at the bank", "hm"]
ANSWERS = [
    ["the cat sat on a mat", "a dog ran"],
    ["it snows", "", "it rains"],
    ["snow"],
    ["hello", [say("he works at a bank")]],
    None,
]
TEXTS = [["the cat sat on a mat", "a dog ran"], ["it snows", "it rains"], ["snow"], ["hello", "he works at a bank"]]


@pytest.mark.parametrize(("component", "reduce"), [("f1", "mean"), ("precision", "max")])
def test_it_logs_what_trl_passes_functions_for(encoder, component, reduce):
    metrics = {}
    columns = {}
    options = {"component": component, "references_reduce": reduce, "name": "mine"}
    reward = BERTScoreReward(encoder, length_band=(0.5, 1.5), repeat_ngram_size=4, **options)
    trainer = {"prompts": ["Say."] * 5, "completion_ids": [[1]] * 5, "trainer_state": None}
    logs = {"log_metric": metrics.__setitem__, "log_extra": columns.__setitem__}
    rewards = reward(completions=TOLD, references=ANSWERS, **trainer, **logs)
    scores = []
    for text, texts in zip(TOLD, TEXTS, strict=False):
        scores.append(bert_score([text] * len(texts), texts, encoder)[component])
    raw = [getattr(torch, reduce)(of_text).item() for of_text in scores]
    # The second has 8 tokens, at most 1.5 times the 3 of "it snow ##s" count, and 2 of its 5 4-grams are distinct.
    lowered = [raw[0], raw[1] * (1.5 * 3 / 8) * (2 / 5), raw[2], raw[3], None]

    assert rewards == pytest.approx(lowered, abs=2e-6)
    length_ratio = (6 + 8 + 1 + 5) / (6 + 2 + 1 + 5)
    logged = {"mine/raw": sum(raw) / 4, "mine/lowered": 1 / 4, "mine/length_ratio": length_ratio}
    assert metrics == pytest.approx(logged, abs=2e-6)
    closest = [texts[of_text.argmax()] for of_text, texts in zip(scores, TEXTS, strict=True)]
    assert closest == ["the cat sat on a mat", "it rains", "snow", "he works at a bank"]
    assert columns == {"mine/closest_reference": [*closest, None]}
    assert reward(TOLD, ANSWERS) == rewards


def test_what_has_no_mean_is_not_logged(encoder):
    """Trainers sum what is logged on all ranks, and divide by the number of values."""
    metrics = {}
    columns = {}
    logs = {"log_metric": metrics.__setitem__, "log_extra": columns.__setitem__}
    reward = BERTScoreReward(encoder, component="recall", length_band=(0.5, 1.5))

    assert reward(["a", "b"], [None, []], **logs) == [None, None]
    assert metrics == {}
    assert columns == {f"{reward.__name__}/closest_reference": [None, None]}
    # Empty texts have no ratio.
    assert reward([""], [""], **logs) == [0.0]
    assert metrics == {f"{reward.__name__}/raw": 0.0, f"{reward.__name__}/lowered": 0.0}
