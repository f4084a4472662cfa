"""Piece tables on disk, one file per pair of tokenizers."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.losses.bridge.piece_table import PieceTable, build_table

__all__ = ["default_folder", "load_table", "pair_digest"]

# Changes whenever the same tokenizers would give another table.
_FORMAT = "1"
_ENVIRONMENT = "BERTSCORE_TM_CACHE"
_TENSORS = {
    "offsets": torch.int64,
    "pieces": torch.int64,
    "shares": torch.float32,
    "follows": torch.int64,
    "control": torch.bool,
}


def default_folder() -> Path:
    """Return where tables are kept: ``$BERTSCORE_TM_CACHE``, or ``bertscore_tm`` in the user's cache folder."""
    chosen = os.environ.get(_ENVIRONMENT)
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertscore_tm"


def load_table(
    generator: PreTrainedTokenizerBase,
    encoder: TextTokenizer,
    vocab_size: int,
    folder: str | os.PathLike[str] | None = None,
) -> PieceTable:
    """Return the table of a pair of tokenizers, from disk where it is there, and otherwise leave it there.

    A damaged file is replaced, a folder that can not be written to left alone; either is warned of.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's.
        vocab_size: number of the generator's logits.
        folder: where tables are kept. Default: :func:`default_folder`.

    Returns:
        The table.
    """
    place = default_folder() if folder is None else Path(folder)
    path = place / f"vocabulary-{pair_digest(generator, encoder, vocab_size)[:32]}.safetensors"
    table = _read(path, encoder.vocab_size)
    if table is None:
        table = build_table(generator, encoder, vocab_size)
        _write(path, table)
    return table


def pair_digest(generator: PreTrainedTokenizerBase, encoder: TextTokenizer, vocab_size: int) -> str:
    """Return a hash of all that a table depends on.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's.
        vocab_size: number of the generator's logits.

    Returns:
        Hexadecimal digits, equal in every process for tokenizers of equal contents.
    """
    hashed = hashlib.sha256(repr((_FORMAT, vocab_size, encoder.prefix_space)).encode())
    for tokenizer in (generator, encoder.tokenizer):
        hashed.update(_serialised(tokenizer))
    return hashed.hexdigest()


def _serialised(tokenizer: PreTrainedTokenizerBase) -> bytes:
    roles = {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())}
    described: list[Any] = [type(tokenizer).__name__, roles, getattr(tokenizer, "clean_up_tokenization_spaces", None)]
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        # These two only tell how the tokenizer was called last.
        del content["truncation"], content["padding"]
        described.append(content)
    else:
        described += [sorted(tokenizer.get_vocab().items()), repr(sorted(tokenizer.init_kwargs.items(), key=str))]
    return json.dumps(described, default=repr).encode()


def _read(path: Path, encoder_size: int) -> PieceTable | None:
    """The table in a file, or ``None`` where there is none that can be used."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        damage = "" if _is_table(tensors, metadata) else "it does not hold what was written"
    except (OSError, SafetensorError) as error:
        damage = str(error)
    if not damage and bool((tensors["pieces"] >= encoder_size).any()):
        damage = "it is of another encoder"
    if damage:
        warnings.warn(f"the table {path} can not be used and is built again: {damage}", stacklevel=4)
        return None
    return PieceTable(**tensors, identity=metadata["identity"] == "yes")


def _is_table(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bool:
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    return dtypes == _TENSORS and metadata.get("digest") == _digest(tensors, metadata.get("identity", ""))


def _write(path: Path, table: PieceTable) -> None:
    tensors = {name: getattr(table, name).contiguous() for name in _TENSORS}
    identity = "yes" if table.identity else "no"
    content = save(tensors, {"identity": identity, "digest": _digest(tensors, identity)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False)  # noqa: SIM115
        try:
            with file:
                file.write(content)
            # Others see the whole file or none.
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(
            f"the table of this pair of tokenizers can not be kept in {path.parent} and will be built again next time: "
            f"{error}; pass cache_dir= or set {_ENVIRONMENT}",
            stacklevel=4,
        )


def _digest(tensors: dict[str, Tensor], identity: str) -> str:
    hashed = hashlib.sha256(identity.encode())
    for name in sorted(tensors):
        hashed.update(tensors[name].contiguous().view(torch.uint8).numpy().data)
    return hashed.hexdigest()
