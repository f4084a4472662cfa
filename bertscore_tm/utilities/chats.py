"""Chats, which are lists of messages such as ``{"role": "assistant", "content": "hello"}``, and their answers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# A leading block, closed or cut off, or one that the prompt opened.
_THOUGHT = re.compile(r"\s*<(think|thinking)>.*?(?:</\1>\s*|$)|(?:(?!<think).)*?</think(?:ing)?>\s*", re.DOTALL)


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


def strip_thoughts(text: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the answer of a reasoning model without the ``<think>`` or ``<thinking>`` block in front of it.

    Args:
        text: a text, or a chat, a list of messages with ``role`` and ``content``, whose last message of the assistant
            is the answer.

    Returns:
        The text after the block. It is empty if the answer is cut off within the block. A text without a block in front
        is returned unchanged.

    Raises:
        TypeError: ``text`` is neither a text nor a chat.
        ValueError: the chat has no message of the assistant.

    Example:
        >>> strip_thoughts("<think>Say hello.</think> hello"), strip_thoughts("<think>Say"), strip_thoughts("a < b")
        ('hello', '', 'a < b')
        >>> strip_thoughts([{"role": "assistant", "content": "<think>Say hello.</think> hello"}])
        'hello'
    """
    if isinstance(text, str):
        answer = text
    elif is_chat(text):
        answer = read_answer(text)
    else:
        raise TypeError(
            f"text must be a string or a chat, a list of messages with 'role' and 'content', got a "
            f"{type(text).__name__}. Call strip_thoughts for each text"
        )
    block = _THOUGHT.match(answer)
    return answer if block is None else answer[block.end() :]
