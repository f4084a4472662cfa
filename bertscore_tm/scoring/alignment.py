"""Alignment of two texts: which tokens match, and what each adds to the score."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.core.matching import match_pairs
from bertscore_tm.core.scores import precision_recall_f1
from bertscore_tm.core.token_vectors import cosine_similarities
from bertscore_tm.scoring.display_tokens import split_for_display
from bertscore_tm.scoring.rescaling import rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.texts import describe_given
from bertscore_tm.scoring.token_weights import require_known
from bertscore_tm.utilities.score_names import SCORE_NAMES

# Match of a token whose most similar token is a special one.
SPECIAL = -1


class EmptyTextError(ValueError):
    """A text has no tokens to align."""


@dataclass(frozen=True)
class AlignedText:
    """One of two aligned texts, without its special tokens.

    Args:
        tokens: the tokens, spelled as in the text.
        joined: whether each token follows the one before without a space.
        weights: weight of each token, shape (tokens,), float64.
        best: similarity of each token to the most similar token of the other text, special ones included unless the
            encoder excludes them, shape (tokens,), float32.
        matches: index of that token in the other text's ``tokens``, shape (tokens,), int64; -1 for a special token.
        shares: what each token adds to the text's score, precision for the candidate and recall for the reference,
            shape (tokens,), float64.
        special_share: what the text's special tokens add to the score. The shares and this sum to the score.
        text: the text.
        spans: start and end of each token in the text; ``None`` if the tokenizer does not tell.
    """

    tokens: list[str]
    joined: list[bool]
    weights: Tensor
    best: Tensor
    matches: Tensor
    shares: Tensor
    special_share: float
    text: str = ""
    spans: list[tuple[int, int]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the tokens and their numbers, without their places in the text, as lists, for JSON."""
        numbers = {name: [round(x, 6) for x in getattr(self, name).tolist()] for name in ("weights", "best", "shares")}
        return {
            "tokens": self.tokens,
            **numbers,
            "matches": self.matches.tolist(),
            "special_share": round(self.special_share, 6),
        }


@dataclass(frozen=True, repr=False)
class AlignmentData:
    """Two texts, token by token, and their scores; :class:`bertscore_tm.Alignment` describes the attributes."""

    candidate: AlignedText
    reference: AlignedText
    similarity: Tensor
    precision: float
    recall: float
    f1: float
    num_truncated: int
    settings: str
    is_weighted: bool


def compute_alignment(
    candidate: str,
    reference: str,
    settings: ScoreSettings,
) -> AlignmentData:
    r"""Match the tokens of two texts greedily, at one layer, and divide the score among them.

    With weights w and best similarities m, token i of the candidate adds

    .. math:: \frac{w_i}{\sum_k w_k} m_i, \quad \text{or rescaled} \quad \frac{w_i}{\sum_k w_k} \frac{m_i - b}{1 - b}

    to the precision; likewise the tokens of the reference to the recall (Zhang et al. 2020, section 3). Special tokens
    count, unless the encoder excludes them, but are not listed. Similarities are never rescaled. If all weights of a
    text are 0, so are its shares.
    """
    texts = {"candidate": candidate, "reference": reference}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a single string, got {describe_given(text)}")
    encoder = settings.encoder
    if encoder.all_layers and settings.layer is None:
        raise ValueError("an alignment needs a single layer: pass num_layers=, or an encoder without all_layers=True")
    tokenized = encoder.tokenizer(list(texts.values()))
    for (name, text), has_content in zip(texts.items(), tokenized.has_content, strict=True):
        if not has_content:
            raise EmptyTextError(f"{name}={text!r} has no tokens except special ones: pass a text with content")
    vectors = encoder.encode(tokenized, settings.device)
    if settings.layer is not None:
        vectors = replace(vectors, vectors=vectors.vectors[settings.layer : settings.layer + 1])
    weights = settings.weights.to(settings.device)
    require_known(weights, vectors.ids, encoder.tokenizer)
    pairs = match_pairs(vectors, np.array([0]), np.array([1]))
    scores = torch.stack(precision_recall_f1(pairs, weights.table, settings.f1))  # (3, 1, 1)
    scores = rescale_scores(scores, settings.baseline)
    vectors_of_texts = torch.split(vectors.vectors[0], vectors.lengths.tolist())  # (tokens, width) each
    matrix = cosine_similarities(*vectors_of_texts).cpu()  # (candidate tokens, reference tokens)
    displayed = [split_for_display(text, encoder.tokenizer) for text in texts.values()]
    is_content = [torch.tensor(tokens.is_content, device="cpu") for tokens in displayed]
    if encoder.tokenizer.exclude_special_tokens:
        is_content = [mask[mask] for mask in is_content]

    sides = []
    for number, (matched, similarities) in enumerate([(pairs.candidate, matrix), (pairs.reference, matrix.T)]):
        content, other_content = is_content[number], is_content[1 - number]
        token_weight = weights.table[matched.ids].cpu().double()  # (tokens,)
        fraction = token_weight / token_weight.sum().clamp(min=torch.finfo(torch.float64).tiny)
        # Baselines differ between precision and recall: each text's similarities are rescaled by those of its score.
        rescaled = rescale_scores(matched.best.T.expand(3, 1, -1), settings.baseline)[number, 0]  # (tokens,)
        shares = fraction * rescaled.cpu().double()  # (tokens,)
        content_index = torch.where(other_content, other_content.cumsum(0) - 1, SPECIAL)  # (other tokens,)
        sides.append(
            AlignedText(
                tokens=displayed[number].tokens,
                joined=displayed[number].joined,
                spans=displayed[number].spans,
                text=(candidate, reference)[number],
                weights=token_weight[content],
                best=matched.best[:, 0].cpu()[content],
                matches=content_index[similarities.argmax(1)][content],
                shares=shares[content],
                special_share=float(shares[~content].sum()),
            )
        )
    return AlignmentData(
        candidate=sides[0],
        reference=sides[1],
        similarity=matrix[is_content[0]][:, is_content[1]],  # without special tokens
        **dict(zip(SCORE_NAMES, scores.flatten().tolist(), strict=True)),
        num_truncated=tokenized.num_truncated,
        settings=_describe_settings(settings),
        is_weighted=not weights.is_uniform,
    )


def _describe_settings(settings: ScoreSettings) -> str:
    """Name the model, the layer and the settings that differ from the defaults."""
    encoder, weights = settings.encoder, settings.weights
    name = encoder.name
    if Path(name).is_dir():
        # The last folder is often named "model" or "checkpoint-500".
        name = "/".join(Path(name).resolve().parts[-2:])
    facts = [name, f"layer {encoder.num_layers if settings.layer is None else settings.layer}"]
    if encoder.tokenizer.exclude_special_tokens:
        facts.append("without special tokens")
    if weights.source.kind == "mapping":
        facts.append("weights as given")
    elif not weights.is_uniform:
        num_documents = weights.source.num_documents
        facts.append(f"idf of {num_documents} text{'' if num_documents == 1 else 's'}")
    if settings.baseline is not None:
        facts.append(f"rescaled ({settings.baseline.name})")
    return ", ".join(facts)
