"""Options in messages: as the arguments of Python, or in the shell as its flags."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_ARE_FLAGS = ContextVar("are_flags", default=False)


@contextmanager
def name_flags() -> Generator[None, None, None]:
    """Name options as flags of the shell during the block."""
    token = _ARE_FLAGS.set(True)
    try:
        yield
    finally:
        _ARE_FLAGS.reset(token)


def name_option(name: str, value: object = None) -> str:
    """Return an option, with a value if there is one, as its user writes it.

    Example:
        >>> name_option("max_length", 9), name_option("num_layers")
        ('max_length=9', 'num_layers')
        >>> with name_flags():
        ...     name_option("max_length", 9), name_option("trust_remote_code", True)
        ('--max-length 9', '--trust-remote-code')
    """
    if not _ARE_FLAGS.get():
        return name if value is None else f"{name}={value!r}"
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None or value is True else f"{flag} {value}"


def name_encoder_option(name: str, value: object = None) -> str:
    """Return an option of the encoder; in Python with its class, as the drop-ins have no argument of this name."""
    option = name_option(name, value)
    return option if _ARE_FLAGS.get() else f"FrozenEncoder({option}{'=' if value is None else ''})"


def name_long_text(value: str) -> str:
    """Return the option for long texts, also as the drop-in that has one names it."""
    is_drop_in = value == "truncate" and not _ARE_FLAGS.get()
    return name_encoder_option("long_text", value) + " (truncation=True in compat.torchmetrics)" * is_drop_in
