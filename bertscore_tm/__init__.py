"""BERTScore for PyTorch Lightning: metric, loss and callbacks on one encoder.

BERTScore (Zhang et al., "BERTScore: Evaluating Text Generation with BERT", ICLR 2020) compares two texts by
matching the contextual vectors of their tokens greedily by cosine similarity.

* ``bertscore_tm.BERTScore``: a ``torchmetrics.Metric`` that streams and synchronizes over ranks.
* ``bertscore_tm.functional.bert_score``: the same numbers from a function.
* ``bertscore_tm.rank_candidates``: the best of several candidates, against references or by consensus.
* ``bertscore_tm.PairScorer``: a picklable scorer of batches, for datasets, Ray Data, Spark and Dask.
* ``bertscore_tm.score_matrix``: the scores of all pairs of two lists of texts, such as for retrieval.
* ``bertscore_tm.strip_thoughts``: the answer of a reasoning model without its thoughts.
* ``bertscore_tm.align``: which tokens of two texts match, to print or draw.
* ``bertscore_tm.Report``: a web page of all pairs of one or several systems.
* ``bertscore_tm.compat``: the interfaces of ``bert-score``, torchmetrics and Hugging Face's ``evaluate``.
* ``bertscore_tm.losses``: differentiable BERTScore as a training loss.
* ``bertscore_tm.callbacks``: validation scoring and early stopping for Lightning.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.utilities.version import __version__

if TYPE_CHECKING:
    from bertscore_tm.alignment import Alignment
    from bertscore_tm.encoder import FrozenEncoder, Signature
    from bertscore_tm.functional import PairScorer, RankedCandidates, align, rank_candidates, score_matrix
    from bertscore_tm.functional.bert_score import bert_score
    from bertscore_tm.metric import BERTScore
    from bertscore_tm.report import Report
    from bertscore_tm.scoring.rescaling import Baseline
    from bertscore_tm.utilities.chats import strip_thoughts

__all__ = [
    "Alignment",
    "BERTScore",
    "Baseline",
    "FrozenEncoder",
    "PairScorer",
    "RankedCandidates",
    "Report",
    "Signature",
    "__version__",
    "align",
    "bert_score",
    "rank_candidates",
    "score_matrix",
    "strip_thoughts",
]

# In a wheel `losses` and `callbacks` are in this folder, in a checkout next to it. Searching the parent folder too
# makes `import bertscore_tm.losses` work from the checkout's root where no editable install maps the folders.
_here = Path(__file__).resolve().parent
if not (_here / "losses").is_dir() and (_here.parent / "losses" / "__init__.py").is_file():
    __path__.append(str(_here.parent))

# torchmetrics imports matplotlib if it is installed, so the public names are imported on first use: those that are not
# here from `functional`.
_HOMES = {
    "Alignment": "bertscore_tm.alignment",
    "BERTScore": "bertscore_tm.metric",
    "Baseline": "bertscore_tm.scoring.rescaling",
    "FrozenEncoder": "bertscore_tm.encoder",
    "Report": "bertscore_tm.report",
    "Signature": "bertscore_tm.encoder",
    "strip_thoughts": "bertscore_tm.utilities.chats",
}
_SUBMODULES = ("callbacks", "catalog", "compat", "functional", "losses", "statistics")


def __getattr__(name: str) -> Any:
    if name in __all__:
        value = getattr(import_module(_HOMES.get(name, "bertscore_tm.functional")), name)
    elif name in _SUBMODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
