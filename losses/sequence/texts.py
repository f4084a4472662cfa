"""Read completions and references in the forms that trainers pass: texts, chats, or several references."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertscore_tm.scoring.inputs import as_list, describe_given, omit_blank
from bertscore_tm.utilities.chats import is_chat, read_answer

# A text, or messages of a chat such as {"role": "assistant", "content": "..."}; the content may be a list
# of parts such as {"type": "text", "text": "..."}, or of texts.
Text = str | Sequence[Mapping[str, Any]]


def list_completions(completions: Sequence[Text]) -> list[str]:
    """Return each completion as a text; from a chat, take the assistant's last message."""
    entries = as_list(completions, "completions", dimensions=2)
    return [_read_text(entry, f"completions[{i}]") for i, entry in enumerate(entries)]


def list_references(references: Sequence[Text | Sequence[Text] | None]) -> list[list[str]]:
    """Return the references of each entry as a list of texts, which is empty without a reference.

    Blank references are left out if the entry has others.
    """
    entries = as_list(references, "references", dimensions=2)
    return [_read_references(entry, f"references[{i}]") for i, entry in enumerate(entries)]


def _read_references(entry: Any, name: str) -> list[str]:
    """Return the references of one entry."""
    if entry is None:
        # Data sets mark rows without a reference like this.
        return []
    is_single = isinstance(entry, str) or is_chat(entry)
    if is_single:
        return [_read_text(entry, name)]
    references = as_list(entry, name)
    texts = [_read_text(reference, f"{name}[{j}]") for j, reference in enumerate(references)]
    if not texts:
        # omit_blank would return a blank reference. A completion without a reference has the reward None instead.
        return []
    return omit_blank(texts)


def _read_text(entry: Any, name: str) -> str:
    """Return a text, or the last message of the assistant in a chat."""
    if isinstance(entry, str):
        return entry
    if not is_chat(entry):
        raise TypeError(
            f"{name} must be a text or a chat, a list of messages with 'role' and 'content', got "
            f"{describe_given(entry)}"
        )
    try:
        return read_answer(entry)
    except ValueError as error:
        raise TypeError(f"{name} is {error}") from error
