"""The forward pass of a model of transformers: token ids or embeddings in, hidden states out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from bertscore_tm.encoder.families import Family

__all__ = ["accepted_options", "may_ignore_mask", "run_encoder"]

# Keyword arguments that models may lack.
_OPTIONS = ("attention_mask", "output_hidden_states", "return_dict")


def accepted_options(model: nn.Module) -> frozenset[str]:
    """Return which of the attention mask and the options of outputs a model accepts.

    A forward pass with ``**kwargs``, as in subclasses and profilers, accepts all of them.

    Args:
        model: the model.

    Returns:
        The names. The class's method is read: hooks that wrap that of an instance may hide its arguments.
    """
    parameters = signature(type(model).forward).parameters
    accepts_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(name for name in _OPTIONS if accepts_any or name in parameters)


def may_ignore_mask(model: nn.Module) -> bool:
    """Check whether a model lacks an attention mask, or its class is not one of transformers and may drop the mask.

    Args:
        model: the model.

    Returns:
        Whether padding may affect real tokens, in families in which it otherwise does not.
    """
    owner = next(one for one in type(model).__mro__ if "forward" in vars(one))
    is_own = owner.__module__.partition(".")[0] != "transformers"
    return is_own or "attention_mask" not in accepted_options(model)


def run_encoder(
    model: nn.Module,
    family: Family,
    config: PretrainedConfig,
    mask: Tensor,
    *,
    num_layers: int,
    all_layers: bool,
    options: Collection[str],
    **inputs: Tensor,
) -> Tensor:
    """Run an encoder, with autocast off.

    Args:
        model: the encoder, cut to the layers that the family keeps for ``num_layers``.
        family: its family.
        config: its configuration.
        mask: real positions, shape (batch, positions), bool.
        num_layers: the encoder layer whose output is returned.
        all_layers: return the outputs of all layers up to it.
        options: output of :func:`accepted_options`.
        **inputs: ``input_ids`` or ``inputs_embeds``.

    Returns:
        Hidden states, shape (layers, batch, positions, width).

    Raises:
        ValueError: the forward pass does not return the hidden states of the layers.
    """
    # Layer 0 is the state before the first layer.
    kept = family.layers_to_keep(num_layers)
    wants_states = all_layers or kept > num_layers
    length = mask.shape[1]
    _choose_attention(model, config, length)
    passed: dict[str, Any] = {**inputs, "attention_mask": mask.long(), "return_dict": True}
    with torch.autocast(device_type=mask.device.type, enabled=False):
        # What hidden_states holds differs between models: Mamba's lacks the embedding output.
        recorded = family.layers[0] if wants_states and family.probed and len(family.layers) == 1 else None
        with nullcontext() if recorded is None else _record_states(model.get_submodule(recorded)) as states:
            passed["output_hidden_states"] = wants_states and recorded is None
            output = model(**{name: value for name, value in passed.items() if name in inputs or name in options})
        last: Tensor = output.last_hidden_state
        if not wants_states:
            return last[None]
        found = states or output.hidden_states
        if found is None:
            raise ValueError(
                f"the forward pass of {type(model).__name__} does not return the hidden states of its layers: let it "
                f"accept output_hidden_states, or pass forward_fn=, a function that returns token vectors"
            )
        # BigBird pads texts to whole blocks and keeps the padding in its states.
        states = [state[:, :length] for state in found[: num_layers + 1]]
        for path in family.final_modules:
            module = attrgetter(path)(model)
            if module is not None:  # an OPT may lack it
                states = [module(state) for state in states]
        if family.final_modules and kept == num_layers:
            states[-1] = last  # the model has applied them itself
    return torch.stack(states)


@contextmanager
def _record_states(layers: nn.Module) -> Iterator[list[Tensor]]:
    """Record the input of the first of a model's layers and the output of each."""
    states: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append(args[0] if args else kwargs["hidden_states"])

    def record_output(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple | list) else output)

    hooks = [layer.register_forward_hook(record_output) for layer in layers.children()]
    hooks.append(next(layers.children()).register_forward_pre_hook(record_input, with_kwargs=True))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def _choose_attention(model: nn.Module, config: PretrainedConfig, length: int) -> None:
    """Switch BigBird to the kind of attention that it uses for texts of a length; other models have one kind only.

    By itself it switches to full attention at the first batch of short texts and keeps it from then on.
    """
    if not hasattr(model, "set_attention_type"):
        return
    sparse = config.attention_type == "block_sparse" and length > (5 + 2 * config.num_random_blocks) * config.block_size
    # The new attention modules take over the weights of the old ones: nothing is initialized.
    with torch.device("meta"):
        cast(Any, model).set_attention_type("block_sparse" if sparse else "original_full")
