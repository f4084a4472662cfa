"""Chats: lists of messages such as ``{"role": "assistant", "content": "hello"}``."""

from collections.abc import Mapping, Sequence
from typing import Any


def is_chat(value: Any) -> bool:
    """Check whether a value is a list of messages."""
    is_list = isinstance(value, Sequence) and len(value) > 0
    return is_list and all(isinstance(m, Mapping) and ("role" in m or "content" in m) for m in value)


def read_answer(chat: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the assistant's last message; without content, as with tool calls only, it is empty.

    Its content may be a list of parts, or of texts.

    Example:
        >>> read_answer([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
        'hello'
    """
    answers = [message for message in chat if message.get("role", "assistant") == "assistant"]
    if not answers:
        raise ValueError(f"a chat without a message of the assistant: {chat!r:.80}")
    content = answers[-1].get("content") or ""
    if isinstance(content, str):
        return content
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    return "".join(part.get("text") or "" for part in parts if part.get("type", "text") == "text")
