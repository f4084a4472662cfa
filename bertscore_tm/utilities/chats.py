"""Answers in chats, which are lists of messages such as ``{"role": "assistant", "content": "hello"}``."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# A block of thoughts at the start, which is closed or cut off.
_BLOCK = r"\s*<(think|thinking)>.*?(?:</\1>\s*|$)"
# The rest of a block of thoughts, if the prompt has the opening mark.
_REST_OF_BLOCK = r"(?:(?!<think).)*?</think(?:ing)?>\s*"
_THOUGHT = re.compile(f"{_BLOCK}|{_REST_OF_BLOCK}", re.DOTALL)


def is_chat(value: Any) -> bool:
    """Check whether a value is a list of messages."""
    is_list = isinstance(value, Sequence) and len(value) > 0
    return is_list and all(_is_message(entry) for entry in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or "content" in value)


def read_answer(chat: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the assistant's last message.

    The text is empty if the message has no content, for example only calls of tools. If the content is a list of parts
    or of texts, the texts are joined.

    Example:
        >>> read_answer([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
        'hello'
    """
    answers = [message for message in chat if message.get("role", "assistant") == "assistant"]
    if not answers:
        raise ValueError(f"a chat without a message of the assistant: {chat!r:.80}")
    # The content of a message that only calls tools is None or missing.
    content = answers[-1].get("content") or ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type", "text") == "text":
            texts.append(part.get("text") or "")
        # Other parts, such as images, have no text.
    return "".join(texts)


def strip_thoughts(text: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the answer of a reasoning model without the ``<think>`` or ``<thinking>`` block in front of it.

    Args:
        text: a text, or a chat: a list of messages with ``role`` and ``content``. The answer is its last message of the
            assistant.

    Returns:
        The text after the block. It is empty if the answer is cut off within the block. A text that does not start with
        a block is returned unchanged.

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
    if block is None:
        return answer
    return answer[block.end() :]
