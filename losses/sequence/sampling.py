"""Sample sequences from a Hugging Face generator, and compute log-probabilities of samples or stored sequences."""

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

# Recurrent models whose states depend on padding although the attention mask excludes it.
_READS_PADDING = {"recurrent_gemma", "rwkv", "xlstm"}


@dataclass(frozen=True)
class SampledSequences:
    """Sampled sequences with the log-probabilities of their tokens, in the form for the sequence-level losses.

    Args:
        ids: token ids, without prompt and start token, shape (batch, samples, tokens), int64.
        log_probs: log-probability of each token, with gradient, shape (batch, samples, tokens), float32 or wider.
        mask: tokens up to and including the end token, shape (batch, samples, tokens), bool.
    """

    ids: Tensor
    log_probs: Tensor
    mask: Tensor

    def decode(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Return the text of each sequence without padding, first all sequences of the first input.

        Args:
            tokenizer: the generator's tokenizer.

        Returns:
            The texts, batch * samples of them, without special tokens.
        """
        rows = []
        for ids, mask in zip(self.ids.flatten(0, 1), self.mask.flatten(0, 1), strict=True):
            rows.append(ids[mask].tolist())
        texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
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

    The samples come from the model's distribution with temperature u, :math:`w_t \sim \mathrm{softmax}(z_t / u)`, and
    their log-probabilities are those of the same distribution, because unbiased estimates require it. So there is no
    dropout, and top-k, top-p and penalties in the model's generation config are ignored. Only its special tokens are
    used. The training mode of the model is restored afterwards.

    DDP averages only the gradients of what runs in its ``forward``, where Lightning runs ``training_step``. In your own
    training loop, wrap a module whose ``forward`` calls this function. With ``ddp.module`` as the model, ranks diverge.

    Args:
        model: encoder-decoder or decoder of Hugging Face with a language-modelling head, or PEFT's model of one.
        inputs: ``input_ids`` and ``attention_mask``, shape (batch, length) each. For a decoder these are the prompts,
            padded on either side. An encoder-decoder also gets all other entries, except labels and decoder inputs.
        num_samples: samples per input, at least 1.
        max_new_tokens: largest number of sampled tokens.
        temperature: u, above 0. A temperature below 1 samples more probable texts.

    Returns:
        The samples; :meth:`SampledSequences.decode` returns their texts.

    Raises:
        TypeError: the model is wrapped in DDP, or is an encoder-decoder sharded by ``fully_shard``.
        ValueError: the inputs include pixels or other numbers that are not token ids, there is no row, a row has no
            token, a number is below 1, the temperature is not positive, PEFT adds virtual tokens, or the prompts of a
            recurrent model that reads padding are padded.

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
    inputs = _prepare_inputs(model, inputs)
    special = model.generation_config
    if model.config.is_encoder_decoder:
        num_prompt_tokens = 1  # the start token of the decoder
        forced = special.forced_bos_token_id
    else:
        num_prompt_tokens = inputs["input_ids"].shape[1]
        # generate would force this token on a decoder too, after a prompt of one token.
        forced = None
    # This configuration has only the special tokens of the model's own one, without penalties, top-k and top-p.
    config = GenerationConfig(  # type: ignore[no-untyped-call]
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
    with evaluation_mode(model), torch.no_grad(), _replace_config(model, config):
        ids = generator.generate(**inputs, generation_config=config)  # (batch * samples, prompt and new tokens)
    sequences = ids[:, num_prompt_tokens:].unflatten(0, (-1, num_samples))  # (batch, samples, tokens)
    is_end = torch.isin(sequences, torch.tensor(end_ids(special), device=sequences.device, dtype=sequences.dtype))
    num_ends_before = is_end.cumsum(-1) - is_end.long()  # (batch, samples, tokens)
    mask = num_ends_before == 0
    if forced is not None:
        # The forced token has no probability, because it was not sampled.
        mask[..., 0] = False
    log_probs = sequence_log_probs(model, inputs, sequences, mask, temperature=temperature)
    return SampledSequences(sequences, log_probs, mask)


def sequence_log_probs(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], ids: Tensor, mask: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Return the log-probabilities of the tokens of sequences, such as stored candidates, with gradient.

    An encoder-decoder encodes each input once for all of its sequences. The model runs in evaluation mode, without
    dropout, as in sampling. Models of transformers checkpoint activations in training mode only, so their
    ``gradient_checkpointing_enable`` saves no memory here. With torch's ``checkpoint_wrapper``, set dropout to 0,
    because the backward pass recomputes activations in training mode. For DDP, see :func:`sample_with_log_probs`.

    Args:
        model: encoder-decoder or decoder of Hugging Face with a language-modelling head, or PEFT's model of one.
        inputs: as for :func:`sample_with_log_probs`.
        ids: sequences without prompt and start token, shape (batch, sequences, tokens), int64. Values after the end of
            a sequence are ignored, but must be token ids.
        mask: tokens of the sequences, end tokens included, shape (batch, sequences, tokens), bool.
        temperature: temperature of the distribution, above 0. Pass the temperature with which samples were drawn.

    Returns:
        Shape (batch, sequences, tokens), float32 or wider; 0 where the mask is ``False``.

    Raises:
        TypeError: the model is wrapped in DDP.
        ValueError: shapes do not fit, there is no sequence, the temperature is not positive, or
            :func:`sample_with_log_probs` would refuse the inputs.

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
    inputs = _prepare_inputs(model, inputs)
    batch = len(inputs["input_ids"])
    has_sequences = ids.ndim == 3 and len(ids) == batch and ids.shape[1] > 0
    if not has_sequences or mask.shape != ids.shape:
        raise ValueError(
            f"ids and mask must have one shape, ({batch}, sequences, tokens) with at least one sequence, got "
            f"{tuple(ids.shape)} and {tuple(mask.shape)}"
        )
    num_sequences = ids.shape[1]
    rows = ids.flatten(0, 1)  # (batch * sequences, tokens)
    mask_rows = mask.flatten(0, 1).bool()
    # Dropout would give other log-probabilities than those from which the samples were drawn.
    with evaluation_mode(model):
        if model.config.is_encoder_decoder:
            logits = _run_encoder_decoder(model, inputs, rows, num_sequences)
        else:
            logits = _run_decoder(model, inputs, rows, num_sequences)
    logits = logits.to(torch.promote_types(torch.float32, logits.dtype))  # (batch * sequences, tokens, vocabulary)
    if temperature != 1:
        logits = logits / temperature
    log_probs = logits.log_softmax(-1).gather(-1, rows[..., None])[..., 0]  # (batch * sequences, tokens)
    return torch.where(mask_rows, log_probs, 0.0).view_as(ids)


def _run_encoder_decoder(model: Any, inputs: Mapping[str, Tensor], rows: Tensor, rows_per_input: int) -> Tensor:
    """Return the logits of an encoder-decoder that predict each token of the rows."""
    encoded = model.get_encoder()(**inputs)
    # Encode each input once, and let all of its sequences attend to the same states.
    encoded.last_hidden_state = encoded.last_hidden_state.repeat_interleave(rows_per_input, 0)
    # The decoder sees the tokens before the one that it predicts, which begin with the start token.
    start = rows.new_full((len(rows), 1), _start_id(model))
    logits: Tensor = model(
        encoder_outputs=encoded,
        attention_mask=inputs["attention_mask"].repeat_interleave(rows_per_input, 0),
        decoder_input_ids=torch.cat([start, rows[:, :-1]], 1),
        use_cache=False,
    ).logits
    return logits  # (rows, tokens, vocabulary)


def _run_decoder(model: Any, inputs: Mapping[str, Tensor], rows: Tensor, rows_per_input: int) -> Tensor:
    """Return the logits of a decoder that predict each token of the rows after their prompts."""
    prompts = inputs["input_ids"].repeat_interleave(rows_per_input, 0)  # (rows, prompt)
    prompt_mask = inputs["attention_mask"].repeat_interleave(rows_per_input, 0)  # (rows, prompt)
    ids = torch.cat([prompts, rows], 1)  # (rows, prompt + tokens)
    mask = torch.cat([prompt_mask, torch.ones_like(rows)], 1)  # (rows, prompt + tokens)
    options: dict[str, Any] = {"use_cache": False}
    if _takes_position_ids(model):
        # Count positions from the first real token, because prompts are padded on the left: the mask 0 0 1 1 gives the
        # positions 0 0 0 1.
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    logits: Tensor = model(input_ids=ids, attention_mask=mask, **options).logits  # (rows, prompt + tokens, vocabulary)
    # The logits at a position predict the token after it. So the prompt's last position predicts the first token, and
    # nothing follows the last position.
    prompt_length = prompts.shape[1]
    first = prompt_length - 1
    return logits[:, first:-1]  # (rows, tokens, vocabulary)


def _takes_position_ids(model: Any) -> bool:
    """Return whether a decoder accepts position ids. Some models have none, such as BLOOM and Mamba."""
    wrapped = model
    if hasattr(model, "get_base_model"):
        # PEFT's wrapper does not name position_ids, but passes all keyword arguments on to the wrapped model.
        wrapped = model.get_base_model()
    parameters = signature(wrapped.forward).parameters
    if "position_ids" in parameters:
        return True
    # A forward method that does not name input_ids passes all of its keyword arguments on to one that does.
    return "input_ids" not in parameters


def require_count(name: str, value: float, least: int = 1) -> None:
    """Raise a ValueError unless a setting is a whole number that is at least the least allowed one."""
    if value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")


def _prepare_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs with an attention mask, and pad the prompts of a decoder on the left.

    Raises:
        TypeError: the model is wrapped in DDP, or is an encoder-decoder sharded by ``fully_shard``.
        ValueError: an input is not token ids, there is no row, a row has no token, PEFT adds virtual tokens, or prompts
            are padded although the model reads padding.
    """
    _require_supported(model)
    _require_only_ids(inputs)
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(ids)
    # Collators may return a bool mask, or one on another device. It is concatenated with a mask of the sampled tokens,
    # which has the device and dtype of the ids.
    mask = mask.to(ids.device, ids.dtype)
    if len(ids) == 0:
        raise ValueError("inputs has no rows. Pass at least one input.")
    if not mask.any(1).all():
        raise ValueError("a row of input_ids has no token where the attention_mask is 1. Leave this row out.")
    if model.config.is_encoder_decoder:
        return _drop_decoder_inputs(inputs) | {"attention_mask": mask}
    model_type = model.config.model_type
    if model_type in _READS_PADDING and not mask.all():
        raise ValueError(
            f"{model_type} models read padding although the attention_mask excludes it. Pass prompts of one length, "
            f"without padding."
        )
    # A decoder continues each row at its end, so there must be no padding on the right.
    prompts = []
    for row, is_token in zip(ids, mask.bool(), strict=True):
        prompts.append(row[is_token])
    padding_id = _padding_id(model.generation_config) or 0
    prompt_masks = [torch.ones_like(prompt) for prompt in prompts]
    return {
        "input_ids": pad_sequence(prompts, batch_first=True, padding_value=padding_id, padding_side="left"),
        "attention_mask": pad_sequence(prompt_masks, batch_first=True, padding_side="left"),
    }


def _require_only_ids(inputs: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if an input is a tensor of floating-point numbers, such as pixels or speech."""
    others = []
    for name, value in inputs.items():
        if name != "attention_mask" and torch.is_tensor(value) and value.is_floating_point():
            others.append(name)
    if others:
        raise ValueError(f"a generator of texts gets token ids, not {', '.join(others)}. Leave these inputs out.")


def _require_supported(model: PreTrainedModel) -> None:
    """Raise an error for a model whose samples or gradients would be wrong."""
    if isinstance(model, DistributedDataParallel):
        raise TypeError(
            "model is wrapped in DDP, which averages gradients only of what runs in its forward. Wrap a module whose "
            "forward samples and returns the loss."
        )
    if model.config.is_encoder_decoder and _is_sharded(model):
        raise TypeError(
            f"{type(model).__name__} is sharded by fully_shard, which does not gather parameters while generate runs "
            f"encoder and decoder separately. Train it with DDP, or train a decoder-only model."
        )
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise ValueError(
            f"{type(adapter).__name__} adds virtual tokens, whose positions PEFT shifts in padded prompts. Train an "
            f"adapter without virtual tokens, such as LoRA."
        )


def _drop_decoder_inputs(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of an encoder-decoder without labels and decoder inputs.

    Collators derive decoder inputs from the labels. ``generate`` would continue them instead of the start token.
    """
    return {name: value for name, value in inputs.items() if name != "labels" and not name.startswith("decoder_")}


def _is_sharded(model: PreTrainedModel) -> bool:
    """Return whether ``fully_shard`` has replaced a model's parameters."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _start_id(model: Any) -> Any:
    """Return the start token of the decoder: the generation config's, the model config's, or else the BOS token."""
    generation_config = model.generation_config
    model_start_id = getattr(model.config, "decoder_start_token_id", None)
    for token in (generation_config.decoder_start_token_id, model_start_id):
        if token is not None:
            return token
    return generation_config.bos_token_id


def end_ids(config: GenerationConfig) -> list[int]:
    """Return the ids of the tokens that end a generator's texts."""
    end = config.eos_token_id
    if end is None:
        return []
    if isinstance(end, list):
        return end
    return [end]


def _padding_id(config: GenerationConfig) -> int | None:
    """Return the id of the padding token, or of the first end token if there is no padding token."""
    padding_id: int | None = config.pad_token_id
    if padding_id is None:
        padding_id = next(iter(end_ids(config)), None)
    return padding_id


@contextmanager
def _replace_config(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace a model's generation config within a ``with`` block.

    ``generate`` fills the defaults of the config that it is given from the model's config, such as penalties.
    """
    # Replace the config of every module that has one, because wrappers such as PEFT's copy theirs to the wrapped model.
    originals = [(part, part.generation_config) for part in model.modules() if "generation_config" in vars(part)]
    try:
        for part, _ in originals:
            part.generation_config = config  # type: ignore[assignment]
        yield
    finally:
        for part, original in originals:
            part.generation_config = original
