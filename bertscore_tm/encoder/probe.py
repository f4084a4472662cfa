"""Structure of a model, and a probe of models whose type is not listed.

The structure: the encoder of texts within a model, its layers, and the numbering of its positions. The probe: whether
layers can be dropped, and how texts can share a forward pass.
"""

from collections.abc import Hashable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm.device.memory import is_out_of_memory
from bertscore_tm.encoder.families import (
    EQUAL,
    FAMILIES,
    OWN_FAMILY,
    PACKED,
    PADDED,
    Family,
    ModelSpec,
    OwnModelConfig,
)
from bertscore_tm.encoder.forward import ForwardPass, are_same_vectors, draw_texts

# An adapter that is saved into the folder of its merged model would be applied twice.
MERGE_REMEDY = "merge the adapter with merge_and_unload() and save the merged model into a folder of its own"
# Names of tables of absolute positions.
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")
# Tokens of the texts that are tried: short ones, and some that fill several blocks of models with local attention.
_LENGTHS = (64, 34, 21, 21, 3)
# A row of more tokens than the model has positions is tried too, unless that is expensive.
_LARGEST_ROW = 1024

# The families that probes of this process completed, by what they depend on.
_results: dict[Hashable, Family] = {}


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the part of a configuration that describes the encoder of texts."""
    if config.model_type in FAMILIES:
        return config
    if not getattr(config, "is_encoder_decoder", False):
        # Models of images or sound have a part for texts. Others return themselves.
        return config.get_text_config()
    encoder_config = getattr(config, "encoder", None)
    if isinstance(encoder_config, PretrainedConfig):
        return text_config(encoder_config)
    return config


def encoder_of(model: nn.Module) -> nn.Module:
    """Return the encoder of texts within a base model of transformers, with or without a decoder."""
    config = cast(Any, model).config
    encoder: nn.Module | None = getattr(model, "encoder", None)
    if getattr(config, "is_encoder_decoder", False):
        if encoder is None:
            return model
        if not hasattr(encoder, "config"):  # FSMT
            raise ValueError(describe_refusal(config, "structure", "its encoder has no configuration"))
        return encoder_of(encoder)
    part = text_config(config)
    if part is not config:
        return _find_text_model(model, part.model_type)
    family = FAMILIES.get(config.model_type)
    if family is not None and family.encoder_class and encoder is not None:
        return encoder
    return model


def _find_text_model(model: nn.Module, model_type: str) -> nn.Module:
    """Return the encoder within the first module whose configuration has a type."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "model_type", None) == model_type:
            if module is model:
                return module
            return encoder_of(cast(Any, module).base_model)
    return model


def ready_encoder(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, has_forward_fn: bool
) -> tuple[nn.Module, PretrainedConfig]:
    """Return the encoder within a ready model, or the whole that a function runs, and a copy of its configuration."""
    if has_forward_fn:
        config = getattr(model, "config", None)
        if isinstance(config, PretrainedConfig) and config.model_type in FAMILIES:
            return model, deepcopy(config)
        return model, OwnModelConfig(vocab_size=len(tokenizer))
    # Slow to import; already imported by anyone who has a model of transformers.
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{type(model).__name__} is not a model of transformers: {_find_remedy(model)}")
    encoder: Any = encoder_of(model.base_model)
    return encoder, deepcopy(encoder.config)


def _find_remedy(model: nn.Module) -> str:
    """Return what to pass instead of a wrapper of a model, or together with a model of the user."""
    if hasattr(model, "get_base_model"):  # PEFT
        return f"pass the model that merge_and_unload() returns, or {MERGE_REMEDY}"
    if type(model).__name__ == "FullyShardedDataParallel":
        return "pass the model before it is wrapped, because FSDP has sharded its weights"
    for attribute in ("_orig_mod", "module"):  # torch.compile and DDP
        if isinstance(getattr(model, attribute, None), nn.Module):
            return f"pass its .{attribute}"
    return (
        "pass forward_fn= too, a function of the model and a dictionary of input_ids and attention_mask that returns "
        "token vectors"
    )


def find_own_classes(model: nn.Module) -> frozenset[type[nn.Module]]:
    """Return the classes of a model's modules that belong neither to transformers nor to torch."""
    classes = {type(module) for module in model.modules()}
    return frozenset(kind for kind in classes if kind.__module__.partition(".")[0] not in ("transformers", "torch"))


def require_whole(encoder: nn.Module, config: PretrainedConfig, family: Family) -> None:
    """Raise an error if a ready model has fewer layers or positions than its configuration says, as after a cut."""
    key_of_layers = "num_hidden_layers"
    if hasattr(config, "num_hidden_groups"):
        # The layers of a group of ALBERT share their weights, so that it has one module per group.
        key_of_layers = "num_hidden_groups"
    counts = []  # each with its key in the configuration, and the path of the module with so many entries
    for path in family.layer_paths:
        modules = cast(nn.ModuleList, encoder.get_submodule(path))
        counts.append((key_of_layers, path, len(modules)))
    key_of_positions = family.absolute_positions
    # The configuration of a model whose positions are relative only has no number of positions to compare with.
    if key_of_positions is not None:
        for path, module in encoder.named_modules():
            is_table = isinstance(module, nn.Embedding) and path.rpartition(".")[2] in _POSITION_TABLES
            if is_table:
                rows = len(cast(nn.Embedding, module).weight)
                # BART's first two rows are not in use, which its attribute "offset" says.
                counts.append((key_of_positions, path, rows - cast(int, getattr(module, "offset", 0))))
    for key, path, count in counts:
        configured = getattr(config, key, count)
        if count < configured:
            raise ValueError(
                f"{type(encoder).__name__} has {count} entries in {path}, but its configuration says "
                f"{key}={configured}. Set model.config.{key} = {count}, or pass the whole model"
            )


def family_of(config: PretrainedConfig, encoder: nn.Module | None = None, *, trust_remote_code: bool = False) -> Family:
    """Return the family of a model: listed in the table, or found in the structure of its encoder.

    Without the encoder, a model whose type is not listed is built without weights. A ValueError if its layers are not
    found.
    """
    if isinstance(config, OwnModelConfig):
        return OWN_FAMILY
    part = text_config(config)
    # With this option, as in PaliGemma, Gemma's attention is bidirectional without padding and causal with it.
    is_other_gemma = getattr(part, "use_bidirectional_attention", False)
    if part.model_type in FAMILIES and not is_other_gemma:
        return FAMILIES[part.model_type]
    if encoder is None:
        encoder = _build_encoder(config, part, trust_remote_code=trust_remote_code)
    return _find_family(encoder, part)


def _build_encoder(config: PretrainedConfig, part: PretrainedConfig, *, trust_remote_code: bool) -> nn.Module:
    """Build the encoder of texts without weights."""
    auto: Any = AutoModel
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = auto.from_config(config, trust_remote_code=trust_remote_code).base_model
    except (AttributeError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(describe_refusal(part, "structure", f"{type(error).__name__}: {error}")) from error
    return encoder_of(model)


def _find_family(encoder: nn.Module, config: PretrainedConfig) -> Family:
    """Find an encoder's layers and the numbering of its positions, for a probe to complete."""
    layer_paths = _find_layers(encoder, config)
    absolute_positions = None
    if hasattr(config, "max_position_embeddings"):
        absolute_positions = "max_position_embeddings"
    padding_id = _find_padding_id(encoder)
    return Family(
        layer_paths=layer_paths,
        counter_path=_find_counter(encoder, config.num_hidden_layers),
        absolute_positions=absolute_positions,
        positions_after_padding=padding_id is not None,
        padding_id=padding_id,
        probed=True,
    )


def _find_layers(encoder: nn.Module, config: PretrainedConfig) -> tuple[str, ...]:
    """Return the paths of the lists with one module per layer, without lists within other lists."""
    count = getattr(config, "num_hidden_layers", 0)
    lists = {path: module for path, module in encoder.named_modules() if isinstance(module, nn.ModuleList)}
    layer_paths = []
    for path, modules in lists.items():
        is_inner = any(path.startswith(f"{outer}.") for outer in lists)
        if len(modules) == count > 0 and not is_inner:
            layer_paths.append(path)
    if not layer_paths:
        raise ValueError(describe_refusal(config, "structure", f"no list of {count} layers, one module each"))
    return tuple(layer_paths)


def _find_counter(encoder: nn.Module, count: int) -> str | None:
    """Return the attribute with the number of layers that the forward pass runs, or ``None``."""
    for name in ("n_layers", "num_layers"):
        if getattr(encoder, name, None) == count:
            return name
    return None


def _find_padding_id(encoder: nn.Module) -> int | None:
    """Return the padding id of the first table of positions, or ``None`` if positions are counted from 0."""
    for path, module in encoder.named_modules():
        name = path.rpartition(".")[2]
        if "position" in name and isinstance(module, nn.Embedding):
            return module.padding_idx
    return None


def describe_refusal(config: PretrainedConfig, probe: str, finding: str) -> str:
    """Return the message of an error about a model that failed a probe, with the remedy."""
    return (
        f"models of type {config.model_type!r} are not supported as encoder: the probe of the {probe} failed "
        f"({finding}). Types that need no probe: {', '.join(sorted(FAMILIES))}. For any other model pass "
        f"FrozenEncoder(model, tokenizer, forward_fn=...), with a function that returns its token vectors"
    )


def _key(spec: ModelSpec) -> Hashable:
    return spec.config.to_json_string(), spec.layers_kept, spec.code


def needs_probe(spec: ModelSpec) -> bool:
    """Return whether the probe must run: no result is cached for this configuration."""
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
        self.encoder = encoder
        self.spec = spec
        self.last_kept = spec.layers_kept  # number of the last layer that the cut encoder has
        self.num_layers = int(spec.config.num_hidden_layers)
        self.texts = draw_texts(spec, _LENGTHS, next(encoder.parameters()).device)
        # Two texts of equal length, of which the first has special tokens.
        self.ids = torch.stack(self.texts[2:4])  # (texts, tokens)

    def forward_pass(self, layer: int, *, all_layers: bool = False) -> ForwardPass:
        """Return the forward pass to a layer, the last one in memory."""
        return ForwardPass(self.encoder, replace(self.spec, num_layers=layer, all_layers=all_layers))

    def _learn(self, **properties: Any) -> None:
        self.spec.family = replace(self.spec.family, **properties)

    def run_whole(self, inputs: Tensor) -> Tensor:
        """Return the output of each layer, as if it were the last one, of the encoder with all layers."""
        return self.forward_pass(self.num_layers, all_layers=True)(inputs)

    def find_final_modules(self) -> None:
        """Find the modules that turn the last layer's output into the encoder's."""
        called: list[tuple[str, Tensor, Tensor]] = []  # name, input and output of modules in the order of their calls

        def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            # Modules with further inputs cannot be applied to the output of lower layers.
            if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
                called.append((name, inputs[0], output))

        lists = tuple(f"{path}." for path in self.spec.family.layer_paths)
        ids = self.ids[:1]
        with ExitStack() as hooks:
            for name, module in self.encoder.named_modules():
                is_in_layers = name.startswith(lists)
                # The whole encoder, with the name "", contains them too.
                contains_layers = any(path.startswith(name) for path in lists)
                if not is_in_layers and not contains_layers:
                    hooks.enter_context(module.register_forward_hook(partial(record, name)))
            output = self.forward_pass(self.num_layers)(ids)[0]
        # Go back from the encoder's output, module by module, to the output of the last layer. The last call comes
        # first, because the hook of a module runs after those of the modules within it.
        names: list[str] = []
        for name, before, after in reversed(called):
            gives_output = torch.equal(after, output)
            # A module that changes nothing, such as dropout, is left out.
            has_effect = not torch.equal(before, after)
            if gives_output and has_effect:
                names.append(name)
                output = before
        self._learn(final_modules=tuple(reversed(names)))
        states = self.run_whole(ids)
        if states.shape[:3] != (self.num_layers + 1, *ids.shape):
            raise ValueError(f"hidden states of shape {tuple(states.shape)} for {self.num_layers} layers")

    def find_batching(self) -> None:
        """Find out how texts share a forward pass; those of equal length must not affect each other."""
        texts = self.texts
        limit = self.spec.max_positions
        if limit is not None and limit <= _LARGEST_ROW:
            # Repeat a text, so that the row has more tokens than the model has positions.
            num_repeats = limit // len(texts[3])
            texts = [*texts[:3], *[texts[3]] * num_repeats, *texts[4:]]
        candidates = [PACKED, PADDED, EQUAL]
        if hasattr(self.encoder, "set_attention_type"):
            # BigBird's attention changes with the length of the longest text.
            candidates = [EQUAL]
        # All layers are compared, also those above: a few texts may not show a difference in one layer, where attention
        # is limited to some tokens of the highest weight.
        forward = self.forward_pass(self.num_layers, all_layers=True)
        trial = forward.find_batching(texts, candidates, torch.float32)
        if trial.batching is None:
            raise ValueError("a text got other vectors next to a text of equal length than alone")
        self._learn(batching=trial.batching)

    def find_embeddings(self) -> None:
        """Find out whether input embeddings instead of token ids give the same vectors."""
        # Take the text without special tokens, because soft tokens are ordinary ones.
        ids = self.ids[1:]  # (1, tokens)
        expected = self.run_whole(ids)[self.last_kept]  # (texts, tokens, width)
        try:
            embeds = cast(Any, self.encoder).get_input_embeddings()(ids)
            states = self.run_whole(embeds)[self.last_kept]
        except (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            self._learn(takes_embeddings=False)
            return
        self._learn(takes_embeddings=are_same_vectors(states, expected, torch.float32))

    def cut(self) -> None:
        """Cut the encoder, and check that it gives the same vectors as the whole one."""
        family = self.spec.family
        whole_lists = {path: self.encoder.get_submodule(path) for path in family.layer_paths}
        # If no layer is to be dropped, drop one for the probe, because the norm is applied to lower layers too.
        tried = self.last_kept
        if self.last_kept >= self.num_layers:
            tried = max(self.num_layers - 1, 1)
        expected = self.run_whole(self.ids)[tried]
        family.cut(self.encoder, family.layers_to_keep(tried, self.spec.config))
        if not are_same_vectors(self.forward_pass(tried)(self.ids)[0], expected, torch.float32):
            raise ValueError(f"layer {tried} of the model without the layers above it differs")
        if tried != self.last_kept:
            family.set_layers(self.encoder, whole_lists, self.num_layers)
