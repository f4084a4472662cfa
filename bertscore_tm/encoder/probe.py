"""Probe of a model whose type is not listed: whether its layers can be cut, and whether padding affects real tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from bertscore_tm.core.batching import is_out_of_memory
from bertscore_tm.encoder.families import Family, describe_refusal
from bertscore_tm.encoder.forward_pass import accepted_options, run_encoder
from bertscore_tm.encoder.padding import are_same_vectors, mixes_padding

__all__ = ["cut_probed", "probed_family"]

# Tokens of the texts that are tried: a short one, and two that fill several blocks of models with local attention.
_LENGTHS = (3, 21, 34)

# Results of this process, by configuration and number of layers.
_results: dict[tuple[str, int], Family] = {}


def probed_family(config: PretrainedConfig, layers_kept: int) -> Family | None:
    """Return the result of an earlier probe of this configuration.

    Args:
        config: the encoder's configuration.
        layers_kept: number of layers to keep.

    Returns:
        The complete family; ``None`` before the first probe.
    """
    return _results.get((config.to_json_string(), layers_kept))


def cut_probed(encoder: nn.Module, config: PretrainedConfig, layers_kept: int, family: Family) -> Family:
    """Probe an encoder and cut it in place.

    Args:
        encoder: the whole encoder, in float32.
        config: its configuration.
        layers_kept: number of layers to keep.
        family: what the structure shows.

    Returns:
        The complete family.

    Raises:
        ValueError: a probe fails.
    """
    nn.Module.eval(encoder)
    cast(Any, encoder).config.use_cache = False
    probe = _Probe(encoder, config, family, layers_kept)
    probes = {
        "forward pass": probe.find_final_modules,
        "repetition": probe.check_repetition,
        "neighbours": probe.find_mixing,
        "embeddings": probe.find_embeddings,
        "cut": probe.cut,
    }
    with torch.no_grad():
        for name, run in probes.items():
            try:
                run()
            except Exception as error:
                if isinstance(error, ImportError) or is_out_of_memory(error):
                    raise
                finding = str(error) if isinstance(error, _ProbeError) else f"{type(error).__name__}: {error}"
                raise ValueError(describe_refusal(config, name, finding)) from error
    _results[config.to_json_string(), layers_kept] = probe.family
    return probe.family


class _ProbeError(Exception):
    """What a probe found."""


class _Probe:
    """Runs an encoder on texts of random tokens and completes its family."""

    def __init__(self, encoder: nn.Module, config: PretrainedConfig, family: Family, layer: int) -> None:
        self.encoder = encoder
        self.config = config
        self.family = family
        self.layer = layer
        self.layers = int(config.num_hidden_layers)
        self.options = accepted_options(encoder)
        self.device = next(encoder.parameters()).device
        self.pad_id = int(getattr(config, "pad_token_id", None) or 0)
        self.limit = family.max_positions(config)
        reserved = {self.pad_id} | {
            value for name, value in config.to_dict().items() if name.endswith("_token_id") and isinstance(value, int)
        }
        ids = [i for i in range(int(getattr(config, "vocab_size", 256))) if i not in reserved]
        allowed = torch.tensor(ids, dtype=torch.long, device="cpu")
        generator = torch.Generator("cpu").manual_seed(0)
        length = min(max(_LENGTHS), self.limit or max(_LENGTHS))
        drawn = torch.randint(len(allowed), (2, length), generator=generator, dtype=torch.long, device="cpu")
        self.texts = allowed[drawn].to(self.device)

    def run(self, layer: int, mask: Tensor, *, all_layers: bool = False, **inputs: Tensor) -> Tensor:
        return run_encoder(
            self.encoder,
            self.family,
            self.config,
            mask,
            num_layers=layer,
            all_layers=all_layers,
            options=self.options,
            **inputs,
        )

    def run_whole(self, layer: int | slice, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the output of a layer, as if it were the last one, of the encoder with all layers."""
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        return self.run(self.layers, mask, all_layers=True, input_ids=ids)[layer]

    def find_final_modules(self) -> None:
        """Find the modules that turn the last layer's output into the encoder's."""
        called: list[tuple[str, Tensor, Tensor]] = []

        def record(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
                if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
                    called.append((name, inputs[0], output))

            return hook

        inside = tuple(f"{path}." for path in self.family.layers)
        hooks = [
            module.register_forward_hook(record(name))
            for name, module in self.encoder.named_modules()
            if name and not name.startswith(inside) and not any(path.startswith(name) for path in inside)
        ]
        ids = self.texts[:1]
        try:
            output = self.encoder(
                input_ids=ids,
                **({"attention_mask": torch.ones_like(ids)} if "attention_mask" in self.options else {}),
                **({"return_dict": True} if "return_dict" in self.options else {}),
            )
        finally:
            for hook in hooks:
                hook.remove()
        # From the last module to the first; the hook of a module runs after those of the modules within it.
        found: list[str] = []
        sought: Tensor = output.last_hidden_state
        for name, before, after in reversed(called):
            if torch.equal(after, sought) and not torch.equal(before, after):
                found.append(name)
                sought = before
        self.family = replace(self.family, final_modules=tuple(reversed(found)))
        states = self.run_whole(slice(None), ids)
        if states.shape[:3] != (self.layers + 1, *ids.shape):
            raise _ProbeError(f"hidden states of shape {tuple(states.shape)} for {self.layers} layers")

    def check_repetition(self) -> None:
        """Check that the same text gets the same vectors twice."""
        first, second = (self.run_whole(self.layers, self.texts) for _ in range(2))
        if not are_same_vectors(first, second, torch.float32):
            raise _ProbeError("the same text got other vectors the second time")

    def find_mixing(self) -> None:
        """Find out whether padding affects real tokens; texts of equal length must not affect each other."""
        together = self.run_whole(self.layer, self.texts)
        for row, vectors in zip(self.texts, together, strict=True):
            if not are_same_vectors(self.run_whole(self.layer, row[None])[0], vectors, torch.float32):
                raise _ProbeError("a text got other vectors next to a text of equal length than alone")
        # BigBird's attention changes with the length of the longest text. All layers are compared, also those above:
        # a few texts may not show it in one layer, where attention is limited to some tokens of the highest weight.
        mixes = hasattr(self.encoder, "set_attention_type") or any(
            mixes_padding(
                lambda ids, mask: self.run_whole(slice(None), ids, mask).movedim(0, 2),
                self.texts[0, :length].tolist(),
                self.pad_id,
                max_length=self.limit,
                dtype=torch.float32,
                device=self.device,
            )
            for length in _LENGTHS
        )
        self.family = replace(self.family, mixes_padding=mixes)

    def find_embeddings(self) -> None:
        """Find out whether input embeddings instead of token ids give the same vectors."""
        mask = torch.ones_like(self.texts, dtype=torch.bool)
        try:
            embeds = cast(Any, self.encoder).get_input_embeddings()(self.texts)
            found = self.run(self.layers, mask, all_layers=True, inputs_embeds=embeds)[self.layer]
        except (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            takes = False
        else:
            takes = are_same_vectors(found, self.run_whole(self.layer, self.texts), torch.float32)
        self.family = replace(self.family, takes_embeddings=takes)

    def cut(self) -> None:
        """Cut the encoder, and check that it gives the same vectors as the whole one."""
        lists = {path: self.encoder.get_submodule(path) for path in self.family.layers}
        # Without a layer to drop, one is dropped for the probe: the norm is applied to lower layers too.
        tried = self.layer if self.layer < self.layers else max(self.layers - 1, 1)
        expected = self.run_whole(tried, self.texts)
        self.family.cut(self.encoder, self.family.layers_to_keep(tried))
        mask = torch.ones_like(self.texts, dtype=torch.bool)
        if not are_same_vectors(self.run(tried, mask, input_ids=self.texts)[0], expected, torch.float32):
            raise _ProbeError(f"layer {tried} of the model without the layers above it differs")
        if tried != self.layer:
            self.family.set_layers(self.encoder, lists, self.layers)
