"""Completions and references as trainers pass them: texts, chats, or several references."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertscore_tm.scoring.inputs import as_list, describe_given, omit_blank
from bertscore_tm.utilities.chats import is_chat, read_answer

# A text, or messages of a chat such as {"role": "assistant", "content": "..."}; the content may be a list
# of parts such as {"type": "text", "text": "..."}, or of texts.
Text = str | Sequence[Mapping[str, Any]]


def list_completions(completions: Sequence[Text]) -> list[str]:
    """Return completions as texts; of a chat the assistant's last message."""
    entries = as_list(completions, "completions", dimensions=2)
    return [_read_text(completion, f"completions[{i}]") for i, completion in enumerate(entries)]


def list_references(references: Sequence[Text | Sequence[Text] | None]) -> list[list[str]]:
    """Return the references of each entry as texts, without blank ones next to others, or an empty list."""
    entries = as_list(references, "references", dimensions=2)
    return [_read_references(entry, f"references[{i}]") for i, entry in enumerate(entries)]


def _read_references(entry: Any, name: str) -> list[str]:
    if entry is None:
        return []
    if isinstance(entry, str) or is_chat(entry):
        return [_read_text(entry, name)]
    texts = [_read_text(text, f"{name}[{j}]") for j, text in enumerate(as_list(entry, name))]
    # An empty list has the reward None, unlike a blank reference.
    return omit_blank(texts) if texts else []


def _read_text(entry: Any, name: str) -> str:
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
