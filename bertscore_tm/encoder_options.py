"""Options of the frozen encoder, declared once: type, default and help, for signature, docstring and the shell."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

# Not at run time, so that the shell prints its help at once.
if TYPE_CHECKING:
    import torch


C = TypeVar("C", bound=type)

LongText = Literal["truncate", "window", "error"]
PrecisionName = Literal["float32", "bfloat16", "float16", "float64", "auto"]


@dataclass(frozen=True)
class Option:
    """Default and description of an option.

    Args:
        default: value in Python and in the shell.
        help: what the option sets, in one line, as Python's docstring and the shell print it.
        details: further sentences of the docstring.
        default_help: description of a default that is ``None``.
        flag: short name in the shell.
        metavar: name of the value in the shell's help.
        choices: allowed values, for options of strings.
        in_shell: the commands have the option too.
    """

    default: object
    help: str
    details: str = ""
    default_help: str = ""
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    in_shell: bool = True


class EncoderOptions(TypedDict, total=False):
    """Keyword arguments of :class:`bertscore_tm.FrozenEncoder`; its docstring lists them."""

    num_layers: int | None
    all_layers: bool
    listed_as: str | None
    revision: str | None
    trust_remote_code: bool
    dtype: "PrecisionName | torch.dtype"
    device: "torch.device | str | None"
    batch_size: int | None
    max_length: int | None
    long_text: LongText
    prefix_space: bool | None
    exclude_special_tokens: bool
    forward_fn: "Callable[[torch.nn.Module, dict[str, torch.Tensor]], torch.Tensor] | None"


_DESCRIPTIONS = {
    "num_layers": Option(
        None,
        "layer whose token vectors are compared; 0 is the embeddings, -1 the last",
        default_help="the tuned layer",
        details="Models listed in ``bertscore_tm.catalog`` have one.",
        flag="-l",
        metavar="L",
    ),
    "all_layers": Option(
        False,
        "return all layers 0..L, each as if it were the only one",
        details="L defaults to the last layer.",
        in_shell=False,
    ),
    "listed_as": Option(
        None,
        "listed model whose layer and baseline a copy or fine-tuned model uses",
        details="Such as ``'roberta-large'``. Default: the model's name, or a copy's origin.",
        metavar="NAME",
    ),
    "revision": Option(None, "revision of a hub model"),
    "trust_remote_code": Option(False, "run code from the model's repository", details="Such code can do anything."),
    "dtype": Option(
        "float32",
        "precision of the encoder: float32, bfloat16, float16, float64 or auto",
        metavar="NAME",
        details="``'float32'`` is exact, ``'bfloat16'`` fast; ``'auto'`` is the half precision that the device "
        "computes natively, else float32. Vectors are returned in float32 or wider.",
        choices=get_args(PrecisionName),
    ),
    "device": Option(
        None,
        "device that encodes, such as cpu or cuda:1",
        default_help="a GPU, cuda or mps, if available",
        details="For functions and rewards: metrics, losses and callbacks follow the device of their module.",
    ),
    "batch_size": Option(
        None,
        "maximum number of texts per forward pass",
        details="Default: limited by a token budget only. When the memory of an accelerator runs out, batches are "
        "halved, with a warning and the same scores; except in a loss, whose gradient needs all texts at once.",
        flag="-b",
        metavar="N",
    ),
    "max_length": Option(
        None,
        "maximum number of tokens per text, special tokens included",
        default_help="the model's maximum",
        metavar="N",
    ),
    "long_text": Option(
        "truncate",
        "truncate longer texts, encode them in overlapping windows, or stop",
        details="``'truncate'`` counts the texts that it cuts. ``'window'`` takes each token's vector from the "
        "window in which it has most context; time and memory are linear in the text's length.",
        choices=get_args(LongText),
    ),
    "prefix_space": Option(None, "put a space before each text", default_help="as the model's family needs it"),
    "exclude_special_tokens": Option(
        False,
        "leave the special tokens around a text, such as cls and sep, out of the matching",
        details="They are encoded as context. Default: other tokens can match them.",
    ),
    "forward_fn": Option(
        None,
        "function of a ready model and a dictionary of ``input_ids`` and ``attention_mask`` that returns token "
        "vectors, shape (batch, tokens, width)",
        details="For models that transformers does not know. ``num_layers`` then only chooses the row of the baseline.",
        in_shell=False,
    ),
}
# Type, a string where it needs torch, and description of each option, and of those that the commands have too.
OPTIONS: dict[str, tuple[Any, Option]] = {
    name: (getattr(kind, "__forward_arg__", kind), _DESCRIPTIONS[name])
    for name, kind in EncoderOptions.__annotations__.items()
}
SHELL_OPTIONS = {name: (kind, option) for name, (kind, option) in OPTIONS.items() if option.in_shell}


def with_defaults(options: Mapping[str, object]) -> dict[str, Any]:
    """Return all options, those that are not given with their defaults; a TypeError if one does not exist."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(f"FrozenEncoder has no argument {unknown[0]!r}; its options are {', '.join(OPTIONS)}")
    return {name: option.default for name, (_, option) in OPTIONS.items()} | dict(options)


def document_options(encoder_class: C) -> C:
    """Write the options into the signature and, in place of a line ``OPTIONS``, the docstring of a class."""
    init = vars(encoder_class)["__init__"]
    written = signature(init)
    positional = [parameter for parameter in written.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=kind)
        for name, (kind, option) in OPTIONS.items()
    ]
    init.__signature__ = written.replace(parameters=[*positional, *keywords])
    entries = "\n".join(_describe(name, option) for name, (_, option) in OPTIONS.items())
    encoder_class.__doc__ = str(encoder_class.__doc__).replace("        OPTIONS", entries)
    return encoder_class


def _describe(name: str, option: Option) -> str:
    default = f"Default: {option.default_help}." if option.default_help else ""
    if option.default is not None and option.default is not False:
        default = f"Default: ``{option.default!r}``."
    text = " ".join(part for part in (f"{name}: {option.help}.", option.details, default) if part)
    return fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 12)
