"""Probe of a model whose type is not listed: whether its layers can be cut, and whether padding affects real tokens."""

from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertscore_tm.device.memory import is_out_of_memory
from bertscore_tm.encoder.families import EQUAL, PACKED, PADDED, Family, ModelSpec, describe_refusal
from bertscore_tm.encoder.forward import ForwardPass, are_same_vectors, draw_texts

# Tokens of the texts that are tried: short ones, and some that fill several blocks of models with local attention.
_LENGTHS = (64, 34, 21, 21, 3)
# A row of more tokens than the model has positions is tried too, unless that is expensive.
_LARGEST_ROW = 1024

# The families that probes of this process completed, by what they depend on.
_results: dict[Hashable, Family] = {}


def _key(spec: ModelSpec) -> Hashable:
    return spec.config.to_json_string(), spec.layers_kept, spec.code


def needs_probe(spec: ModelSpec) -> bool:
    """Return whether a model has to be probed, as this process has not seen its like yet."""
    return spec.family.probed and _key(spec) not in _results


def complete_family(encoder: nn.Module, spec: ModelSpec) -> None:
    """Complete the family of a whole encoder by a probe, or an earlier one; a ValueError if one fails."""
    key = _key(spec)
    if key in _results:
        spec.family = _results[key]
        return
    nn.Module.eval(encoder)
    cast(Any, encoder).config.use_cache = False
    probe = _Probe(encoder, spec)
    probes = {
        "forward pass": probe.find_final_modules,
        "neighbours": probe.find_batching,
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
                raise ValueError(describe_refusal(spec.config, name, f"{type(error).__name__}: {error}")) from error
    _results[key] = spec.family


class _Probe:
    """Runs an encoder on texts of random tokens and completes its family."""

    def __init__(self, encoder: nn.Module, spec: ModelSpec) -> None:
        self.encoder, self.spec, self.layer = encoder, spec, spec.layers_kept
        self.layers = int(spec.config.num_hidden_layers)
        self.texts = draw_texts(spec, _LENGTHS, next(encoder.parameters()).device)
        # Two texts of equal length; the first has special tokens.
        self.ids = torch.stack(self.texts[2:4])

    def forward_pass(self, layer: int, *, all_layers: bool = False) -> ForwardPass:
        """Return the forward pass to a layer, the last one in memory."""
        return ForwardPass(self.encoder, replace(self.spec, num_layers=layer, all_layers=all_layers))

    def _learn(self, **properties: Any) -> None:
        self.spec.family = replace(self.spec.family, **properties)

    def run_whole(self, inputs: Tensor) -> Tensor:
        """Return the output of each layer, as if it were the last one, of the encoder with all layers."""
        return self.forward_pass(self.layers, all_layers=True)(inputs)

    def find_final_modules(self) -> None:
        """Find the modules that turn the last layer's output into the encoder's."""
        called: list[tuple[str, Tensor, Tensor]] = []

        def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            # What needs more than a state cannot be applied to those of lower layers.
            if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
                called.append((name, inputs[0], output))

        inside = tuple(f"{path}." for path in self.spec.family.layers)
        ids = self.ids[:1]
        with ExitStack() as hooks:
            for name, module in self.encoder.named_modules():
                if name and not name.startswith(inside) and not any(path.startswith(name) for path in inside):
                    hooks.enter_context(module.register_forward_hook(partial(record, name)))
            sought = self.forward_pass(self.layers)(ids)[0]
        # From the last module to the first; the hook of a module runs after those of the modules within it.
        names: list[str] = []
        for name, before, after in reversed(called):
            if torch.equal(after, sought) and not torch.equal(before, after):
                names.append(name)
                sought = before
        self._learn(final_modules=tuple(reversed(names)))
        states = self.run_whole(ids)
        if states.shape[:3] != (self.layers + 1, *ids.shape):
            raise ValueError(f"hidden states of shape {tuple(states.shape)} for {self.layers} layers")

    def find_batching(self) -> None:
        """Find out how texts share a forward pass; those of equal length must not affect each other."""
        texts, limit = self.texts, self.spec.max_positions
        if limit is not None and limit <= _LARGEST_ROW:
            texts = [*texts[:3], *texts[3:4] * (limit // len(texts[3])), *texts[4:]]
        # BigBird's attention changes with the length of the longest text.
        candidates = [EQUAL] if hasattr(self.encoder, "set_attention_type") else [PACKED, PADDED, EQUAL]
        # All layers are compared, also those above: a few texts may not show a difference in one layer, where attention
        # is limited to some tokens of the highest weight.
        batching = self.forward_pass(self.layers, all_layers=True).find_batching(texts, candidates, torch.float32)
        if batching is None:
            raise ValueError("a text got other vectors next to a text of equal length than alone")
        self._learn(batching=batching)

    def find_embeddings(self) -> None:
        """Find out whether input embeddings instead of token ids give the same vectors."""
        ids = self.ids[1:]  # without special tokens, which soft tokens are not
        try:
            states = self.run_whole(cast(Any, self.encoder).get_input_embeddings()(ids))[self.layer]
        except (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            takes = False
        else:
            takes = are_same_vectors(states, self.run_whole(ids)[self.layer], torch.float32)
        self._learn(takes_embeddings=takes)

    def cut(self) -> None:
        """Cut the encoder, and check that it gives the same vectors as the whole one."""
        family = self.spec.family
        lists = {path: self.encoder.get_submodule(path) for path in family.layers}
        # Without a layer to drop, one is dropped for the probe: the norm is applied to lower layers too.
        tried = self.layer if self.layer < self.layers else max(self.layers - 1, 1)
        expected = self.run_whole(self.ids)[tried]
        family.cut(self.encoder, family.layers_to_keep(tried, self.spec.config))
        if not are_same_vectors(self.forward_pass(tried)(self.ids)[0], expected, torch.float32):
            raise ValueError(f"layer {tried} of the model without the layers above it differs")
        if tried != self.layer:
            family.set_layers(self.encoder, lists, self.layers)
