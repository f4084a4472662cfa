"""Scoring calls, compared with the bert-score package and SacreBLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import torch
from sacrebleu import corpus_bleu
from torch import Tensor

from bertscore_tm import FrozenEncoder, rank_candidates
from bertscore_tm.losses import BERTScoreReward
from examples.benchmarks.package import load_bert_score, load_encoders, score_f1
from examples.benchmarks.random_models import ROBERTA_LARGE, build_model, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, cut_sentences, make_items

# Scored in 15.6 s with roberta-large on a GTX 1080 Ti, where SacreBLEU took 5.4 s (Zhang et al. 2020, section 5).
_PAPER_PAIRS = 2_998
# Words of sentences, as in a test set of WMT.
_SENTENCES = (5, 35)

_SHORT_PAIRS = 600
_MIXED_CANDIDATES, _MIXED_REFERENCES, _MIXED_WORDS = 24, 11, (10, 180)
# All ordered pairs: 30 * 16 * 15 = 7,200, of 365 distinct texts.
_ITEMS, _CANDIDATES, _DISTINCT = 30, 16, 12
# Pairs of small calls, and calls per round, as one takes milliseconds.
_FEW, _CALLS = (1, 4, 10), 5
# Items and samples that are ranked by consensus.
_RANKED_ITEMS, _SAMPLES = 4, 64
# roberta-large's shape scores a few pairs per second on a CPU.
_LARGE_PAIRS = 100

Pairs = tuple[Sequence[str], Sequence[str] | Sequence[Sequence[str]]]
Scorers = dict[str, Callable[[], Tensor]]


def measure(options: Options) -> Iterator[Figure]:
    """Score several corpora in turn with bert-score.

    Yields:
        For each corpus, in each precision that the processor computes natively, the figures of :func:`compare`; the
        time that idf adds; and the figures of :func:`rate_like_paper` for the encoder and for a random one of
        roberta-large's shape.
    """
    torch.set_num_threads(options.threads)
    encoders, score_peer = load_encoders(), load_bert_score()

    def scorers(pairs: Pairs) -> Scorers:
        candidates, references = pairs
        ours: Scorers = {
            dtype: partial(score_f1, candidates, references, encoder) for dtype, encoder in encoders.items()
        }
        return ours | {"bert-score": partial(score_peer, candidates, references)}

    short, items = _short(options), _pairs_of_items(options)
    yield from compare("short texts", scorers(short), options.rounds)
    plain = scorers(short)["float32"]
    seconds = in_turn({"plain": plain, "idf": partial(plain, idf=True)}, options.rounds)
    added = [ratio - 1 for ratio in ratios(seconds["idf"], seconds["plain"])]
    yield Figure("short texts: time that idf adds", added, "share")
    yield from compare("texts of mixed length", scorers(_mixed(options)), options.rounds)
    yield from compare(f"{len(items[0]):,} pairs of {len({*items[0]})} texts", scorers(items), options.rounds)
    yield from rate_like_paper(encoders, options.pairs or _PAPER_PAIRS, options)
    dtype, tokenizer = [*encoders][-1], train_tokenizer(ROBERTA_LARGE, options.flat_texts())
    layers = ROBERTA_LARGE.num_hidden_layers
    large = FrozenEncoder(build_model(ROBERTA_LARGE), tokenizer, num_layers=layers, dtype=dtype, device="cpu")
    yield from rate_like_paper({f"random roberta-large, {dtype}": large}, options.pairs or _LARGE_PAIRS, options, 1)


def measure_small(options: Options) -> Iterator[Figure]:
    """Score a few pairs, rank the samples of two items and reward a group of completions, in turn with bert-score.

    Yields:
        For each call the figures of :func:`compare`, in float32.
    """
    torch.set_num_threads(options.threads)
    encoder, score_peer = load_encoders()["float32"], load_bert_score()
    candidates, references = _short(options)
    for count in _FEW:
        pairs = candidates[:count], references[:count]
        scorers: Scorers = {"float32": partial(score_f1, *pairs, encoder), "bert-score": partial(score_peer, *pairs)}
        yield from compare(f"{count} pairs", scorers, _CALLS * options.rounds)
    items = make_items(list(dict.fromkeys(options.flat_texts())), 2, _CANDIDATES)
    samples, each = [text for item in items for text in item], [item[0] for item in items for _ in item]

    def rank() -> Tensor:
        return torch.cat(rank_candidates(items, [item[:1] for item in items], encoder=encoder).scores)

    scorers = {"float32": rank, "bert-score": partial(score_peer, samples, each)}
    yield from compare(f"ranking of 2 x {_CANDIDATES}", scorers, options.rounds)
    completions, answers, reward = items[0], references[:1] * _CANDIDATES, BERTScoreReward(encoder)
    scorers = {
        "float32": lambda: torch.tensor(reward(completions, answers)),
        "bert-score": partial(score_peer, completions, answers),
    }
    yield from compare(f"reward of {_CANDIDATES} completions", scorers, options.rounds)


def measure_ranking(options: Options) -> Iterator[Figure]:
    """Rank the samples of a few items by consensus, in turn with bert-score on all n x n pairs, item by item.

    Yields:
        For each precision the figures of :func:`compare`.
    """
    torch.set_num_threads(options.threads)
    samples = options.pairs or _SAMPLES
    items = make_items(list(dict.fromkeys(options.flat_texts())), _RANKED_ITEMS, samples)

    def rank(encoder: FrozenEncoder) -> Tensor:
        return torch.stack(rank_candidates(items, encoder=encoder).scores)

    scorers: Scorers = {dtype: partial(rank, encoder) for dtype, encoder in load_encoders().items()}
    scorers["bert-score"] = partial(rank_by_pairs, items, load_bert_score())
    yield from compare(f"{_RANKED_ITEMS} items of {samples} samples", scorers, options.rounds)


def rank_by_pairs(items: list[list[str]], score: Callable[[list[str], list[str]], Tensor]) -> Tensor:
    """Return the mean F1 of each candidate with the others of its item, by scoring all pairs, item by item."""
    scores = []
    for candidates in items:
        n = len(candidates)
        f1 = score([text for text in candidates for _ in range(n)], candidates * n).view(n, n)
        scores.append((f1.sum(1) - f1.diagonal()) / (n - 1))
    return torch.stack(scores)


def compare(name: str, scorers: Scorers, rounds: int) -> Iterator[Figure]:
    """Yield the speed-up over bert-score, in float32, and the largest difference of a score from its own."""
    scores = {scorer: score() for scorer, score in scorers.items()}
    seconds = in_turn(scorers, rounds)
    for dtype in (scorer for scorer in scorers if scorer != "bert-score"):
        faster = ratios(seconds["bert-score"], seconds[dtype])
        yield Figure(f"{name}: {dtype}, faster than bert-score", faster, "times")
        difference = float((scores[dtype] - scores["bert-score"]).abs().max())
        yield Figure(f"{name}: {dtype}, largest difference of a score", [difference])


def rate_like_paper(
    encoders: Mapping[str, FrozenEncoder], pairs: int, options: Options, rounds: int | None = None
) -> Iterator[Figure]:
    """Score as many pairs of sentences as the paper did, in turn with SacreBLEU.

    Yields:
        Pairs per second (192.5 in the paper), and the time by SacreBLEU's (2.9 in the paper).
    """
    sentences = cut_sentences(options.flat_texts(), 2 * pairs, _SENTENCES)
    candidates, references = sentences[:pairs], sentences[pairs:]
    calls: dict[str, Callable[[], Any]] = {
        name: partial(score_f1, candidates, references, encoder) for name, encoder in encoders.items()
    }
    sacrebleu = f"SacreBLEU, in turn with {', '.join(encoders)}"
    seconds = in_turn(calls | {sacrebleu: partial(corpus_bleu, candidates, [references])}, rounds or options.rounds)
    for name, times in seconds.items():
        what = f"{pairs:,} pairs like the paper's: {name}"
        yield Figure(what, [pairs / time for time in times], "pairs/s")
        if name in encoders:
            yield Figure(f"{what}, time by SacreBLEU's", ratios(times, seconds[sacrebleu]), "times")


def _short(options: Options) -> Pairs:
    """Return pairs from all parts of the texts, with one reference each."""
    count = min(options.pairs or _SHORT_PAIRS, len(options.texts))
    chosen = options.texts[:: len(options.texts) // count][:count]
    return [candidate for candidate, _ in chosen], [reference for _, reference in chosen]


def _mixed(options: Options) -> Pairs:
    """Return candidates with several references, all of very different lengths."""
    count = min(options.pairs or _MIXED_CANDIDATES, _MIXED_CANDIDATES)
    texts = cut_sentences(options.flat_texts(), count * (1 + _MIXED_REFERENCES), _MIXED_WORDS)
    references = iter(texts[count:])
    return texts[:count], [[next(references) for _ in range(_MIXED_REFERENCES)] for _ in range(count)]


def _pairs_of_items(options: Options) -> Pairs:
    """Return all ordered pairs of the candidates of each item, as in minimum Bayes risk decoding."""
    count = min(options.pairs or _ITEMS, _ITEMS)
    texts = list(dict.fromkeys(options.flat_texts()))
    pairs = [pair for item in make_items(texts, count, _CANDIDATES, _DISTINCT) for pair in permutations(item, 2)]
    return [candidate for candidate, _ in pairs], [reference for _, reference in pairs]
