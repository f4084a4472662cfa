"""Completions and references as trainers pass them: texts, chats, or several references."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertscore_tm.scoring.texts import as_list, describe_given, omit_blank

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
    if isinstance(entry, str) or _is_chat(entry):
        return [_read_text(entry, name)]
    return omit_blank([_read_text(text, f"{name}[{j}]") for j, text in enumerate(as_list(entry, name))])


def _read_text(entry: Any, name: str) -> str:
    if isinstance(entry, str):
        return entry
    if not _is_chat(entry):
        raise TypeError(
            f"{name} must be a text or a chat, a list of messages with 'role' and 'content', got "
            f"{describe_given(entry)}"
        )
    answers = [message for message in entry if message.get("role", "assistant") == "assistant"]
    if not answers:
        raise TypeError(f"{name} is a chat without a message of the assistant: {entry!r}")
    content = answers[-1].get("content") or ""
    if isinstance(content, str):
        return content
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    return "".join(part.get("text") or "" for part in parts if part.get("type", "text") == "text")


def _is_chat(entry: Any) -> bool:
    return isinstance(entry, Sequence) and len(entry) > 0 and all(isinstance(message, Mapping) for message in entry)
