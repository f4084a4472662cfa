"""Sampled or stored sequences of a Hugging Face generator with the log-probabilities of their tokens."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm.losses.evaluation import evaluation_mode
from bertscore_tm.utilities.checks import require_positive
from bertscore_tm.utilities.compilation import untraced

# Recurrent models whose states depend on padding.
_READS_PADDING = {"recurrent_gemma", "rwkv", "xlstm"}


@dataclass(frozen=True)
class SampledSequences:
    """Sequences with the log-probabilities of their tokens, as the sequence-level losses take them.

    Args:
        ids: token ids, without prompt and start token, shape (batch, samples, tokens), int64.
        log_probs: log-probability of each token, with gradient, shape (batch, samples, tokens), float32 or wider.
        mask: tokens up to the end token, which is included, shape (batch, samples, tokens), bool.
    """

    ids: Tensor
    log_probs: Tensor
    mask: Tensor

    def decode(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Return the text of each sequence, all of the first input first, without what pads it after its end.

        Args:
            tokenizer: the generator's tokenizer.
        """
        pairs = zip(self.ids.flatten(0, 1), self.mask.flatten(0, 1), strict=True)
        texts: list[str] = tokenizer.batch_decode([ids[real].tolist() for ids, real in pairs], skip_special_tokens=True)
        return texts


@untraced
def sample_with_log_probs(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    num_samples: int,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
) -> SampledSequences:
    r"""Sample several sequences per input, and compute the log-probabilities of their tokens with gradient.

    The samples come from the model's own distribution with temperature u,
    :math:`w_t \sim \mathrm{softmax}(z_t / u)`, and their log-probabilities are those of the same distribution, as
    unbiased estimates require: without dropout, top-k, nucleus or penalties, whatever the model's generation config
    says. Only its special tokens are used. The model keeps its training mode.

    DDP averages gradients only of what runs in its ``forward``, as Lightning's ``training_step`` does. In a loop of
    your own, wrap a module whose ``forward`` calls this function: with ``ddp.module`` as the model, ranks diverge.

    Args:
        model: encoder-decoder or decoder of Hugging Face with a language-modelling head, or PEFT's model of one.
        inputs: ``input_ids`` and ``attention_mask``, shape (batch, length) each; for a decoder the prompts, padded on
            either side. An encoder-decoder also gets all other entries, except labels and decoder inputs.
        num_samples: samples per input, at least 1.
        max_new_tokens: largest number of sampled tokens.
        temperature: u, above 0; below 1 samples more probable texts.

    Returns:
        The samples; :meth:`SampledSequences.decode` returns their texts.

    Raises:
        TypeError: the model is wrapped in DDP, or is an encoder-decoder sharded by ``fully_shard``.
        ValueError: the inputs have others such as pixels, there is no row, a row has no token, a number is below 1, the
            temperature is not positive, PEFT adds virtual tokens, or prompts of a recurrent model that reads padding
            are padded.

    Example:
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        >>> model = T5ForConditionalGeneration(T5Config(vocab_size=20, decoder_start_token_id=0, **sizes))
        >>> sampled = sample_with_log_probs(model, {"input_ids": torch.tensor([[3, 4, 1]])}, 2, max_new_tokens=5)
        >>> sampled.ids.shape == sampled.log_probs.shape, sampled.log_probs.requires_grad
        (True, True)
    """
    require_positive("temperature", temperature)
    require_count("num_samples", num_samples)
    require_count("max_new_tokens", max_new_tokens)
    inputs = _check_inputs(model, inputs)
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    special = model.generation_config
    # A decoder would get it after a prompt of one token.
    forced = special.forced_bos_token_id if model.config.is_encoder_decoder else None
    plain = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        top_k=0,
        temperature=float(temperature),
        num_return_sequences=num_samples,
        max_new_tokens=max_new_tokens,
        bos_token_id=special.bos_token_id,
        eos_token_id=special.eos_token_id,
        pad_token_id=_padding_id(special),
        decoder_start_token_id=_start_id(model),
        forced_bos_token_id=forced,
    )
    generator: Any = model
    with evaluation_mode(model), torch.no_grad(), _own_config(model, plain):
        ids = generator.generate(**inputs, generation_config=plain)
    sequences = ids[:, start:].unflatten(0, (-1, num_samples))
    is_end = torch.isin(sequences, torch.tensor(end_ids(special), device=sequences.device, dtype=sequences.dtype))
    mask = is_end.cumsum(-1) - is_end.long() == 0  # (batch, samples, tokens)
    if forced is not None:
        # Not sampled, so it has no probability.
        mask[..., 0] = False
    log_probs = sequence_log_probs(model, inputs, sequences, mask, temperature=temperature)
    return SampledSequences(sequences, log_probs, mask)


def sequence_log_probs(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], ids: Tensor, mask: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Return the log-probabilities of the tokens of given sequences, such as stored candidates, with gradient.

    An encoder-decoder reads each input once for all of its sequences. The model runs in evaluation mode, without
    dropout, as in sampling. Models of transformers checkpoint activations in training mode only, so their
    ``gradient_checkpointing_enable`` saves no memory here; with torch's ``checkpoint_wrapper``, set dropout to 0, since
    the backward pass recomputes in training mode. For DDP, see :func:`sample_with_log_probs`.

    Args:
        model: encoder-decoder or decoder of Hugging Face with a language-modelling head, or PEFT's model of one.
        inputs: as for :func:`sample_with_log_probs`.
        ids: sequences without prompt and start token, shape (batch, sequences, tokens), int64; values after a
            sequence's end are ignored, but must be token ids.
        mask: tokens of the sequences, end tokens included, shape (batch, sequences, tokens), bool.
        temperature: temperature of the distribution, above 0; for samples, the one that they were drawn with.

    Returns:
        Shape (batch, sequences, tokens), float32 or wider; 0 where the mask is ``False``.

    Raises:
        TypeError: the model is wrapped in DDP.
        ValueError: shapes do not fit, there is no sequence, the temperature is not positive, or the inputs are refused
            by :func:`sample_with_log_probs`.

    Example:
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        >>> model = T5ForConditionalGeneration(T5Config(vocab_size=20, decoder_start_token_id=0, **sizes))
        >>> ids = torch.tensor([[[7, 1], [8, 9]]])
        >>> log_probs = sequence_log_probs(model, {"input_ids": torch.tensor([[3, 4, 1]])}, ids, ids != 1)
        >>> log_probs.shape, log_probs[0, 0, 1].item()
        (torch.Size([1, 2, 2]), 0.0)
    """
    require_positive("temperature", temperature)
    inputs = _check_inputs(model, inputs)
    batch = len(inputs["input_ids"])
    if ids.ndim != 3 or len(ids) != batch or not ids.shape[1] or mask.shape != ids.shape:
        raise ValueError(
            f"ids and mask must have one shape, ({batch}, sequences, tokens) with at least one sequence, got "
            f"{tuple(ids.shape)} and {tuple(mask.shape)}"
        )
    rows, real = ids.flatten(0, 1), mask.flatten(0, 1).bool()
    with evaluation_mode(model):
        if model.config.is_encoder_decoder:
            logits = _decode(model, inputs, rows, ids.shape[1])
        else:
            logits = _continue(model, inputs, rows, real, ids.shape[1])
    logits = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if temperature != 1:
        logits = logits / temperature
    log_probs = logits.log_softmax(-1).gather(-1, rows[..., None])[..., 0]
    return torch.where(real, log_probs, 0.0).view_as(ids)


def _decode(model: Any, inputs: Mapping[str, Tensor], rows: Tensor, count: int) -> Tensor:
    """Return the logits of an encoder-decoder at each token of the rows, ``count`` rows per input."""
    encoded = model.get_encoder()(**inputs)
    encoded.last_hidden_state = encoded.last_hidden_state.repeat_interleave(count, 0)
    first = rows.new_full((len(rows), 1), _start_id(model))
    logits: Tensor = model(
        encoder_outputs=encoded,
        attention_mask=inputs["attention_mask"].repeat_interleave(count, 0),
        decoder_input_ids=torch.cat([first, rows[:, :-1]], 1),
        use_cache=False,
    ).logits
    return logits


def _continue(model: Any, inputs: Mapping[str, Tensor], rows: Tensor, real: Tensor, count: int) -> Tensor:
    """Return the logits of a decoder at each token of the rows, which continue the prompts."""
    prompts = inputs["input_ids"].repeat_interleave(count, 0)
    mask = torch.cat([inputs["attention_mask"].repeat_interleave(count, 0), torch.ones_like(rows)], 1)
    options: dict[str, Any] = {"use_cache": False}
    wrapped = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = signature(wrapped.forward).parameters
    # A subclass may pass on inputs that it does not name.
    if "position_ids" in names or "input_ids" not in names:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    logits: Tensor = model(input_ids=torch.cat([prompts, rows], 1), attention_mask=mask, **options).logits
    return logits[:, prompts.shape[1] - 1 : -1]  # (rows, tokens, vocabulary)


def require_count(name: str, value: float, least: int = 1) -> None:
    """Raise a ValueError unless a setting is a whole number that is large enough."""
    if value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")


def _check_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs with an attention mask, for a decoder with prompts that are padded on the left."""
    if isinstance(model, DistributedDataParallel):
        raise TypeError(
            "model is wrapped in DDP, which averages gradients only of what runs in its forward: wrap a module whose "
            "forward samples and returns the loss"
        )
    if model.config.is_encoder_decoder and _is_sharded(model):
        raise TypeError(
            f"{type(model).__name__} is sharded by fully_shard, whose parts an encoder-decoder runs one at a time in "
            f"generation, where its parameters are not gathered: train it with DDP, or train a decoder-only model"
        )
    others = {name for name, value in inputs.items() if torch.is_tensor(value) and value.is_floating_point()}
    if others := others - {"attention_mask"}:
        raise ValueError(f"a generator of texts gets token ids, not {', '.join(sorted(others))}: leave them out")
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise ValueError(
            f"{type(adapter).__name__} adds virtual tokens, whose positions PEFT shifts in padded prompts: train an "
            f"adapter without virtual tokens, such as LoRA"
        )
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask.to(ids)
    if not len(ids):
        raise ValueError("inputs has no rows: pass at least one input")
    if not mask.any(1).all():
        raise ValueError("a row of input_ids has no token that the attention_mask keeps")
    if model.config.is_encoder_decoder:
        # Decoder inputs, which collators make of the labels, would be continued rather than the start token.
        used = {name: value for name, value in inputs.items() if name != "labels" and not name.startswith("decoder_")}
        return {**used, "attention_mask": mask}
    if model.config.model_type in _READS_PADDING and not mask.all():
        raise ValueError(
            f"{model.config.model_type} models read padding although the attention_mask excludes it: pass prompts of "
            f"one length, without padding"
        )
    rows = [row[is_real] for row, is_real in zip(ids, mask.bool(), strict=True)]
    padding = _padding_id(model.generation_config)
    return {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=padding or 0, padding_side="left"),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left"),
    }


def _is_sharded(model: PreTrainedModel) -> bool:
    """Return whether ``fully_shard`` has replaced a model's parameters."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _start_id(model: Any) -> Any:
    """Return the token that a decoder starts from: the model's where its generation config has none."""
    special, of_model = model.generation_config, getattr(model.config, "decoder_start_token_id", None)
    candidates = (special.decoder_start_token_id, of_model, special.bos_token_id)
    return next((token for token in candidates if token is not None), None)


def end_ids(config: GenerationConfig) -> list[int]:
    """Return the tokens that end a generator's texts."""
    end = config.eos_token_id
    return end if isinstance(end, list) else [] if end is None else [end]


def _padding_id(config: GenerationConfig) -> int | None:
    padding: int | None = next(iter(end_ids(config)), None) if config.pad_token_id is None else config.pad_token_id
    return padding


@contextmanager
def _own_config(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace the generation config, whose settings ``generate`` would take where the given one has defaults."""
    # Wrappers such as PEFT's copy theirs to the wrapped model.
    before = [(part, part.generation_config) for part in model.modules() if "generation_config" in vars(part)]
    try:
        for part, _ in before:
            part.generation_config = config  # type: ignore[assignment]
        yield
    finally:
        for part, own_config in before:
            part.generation_config = own_config
