"""Messages of chats, and the tolerance of rewards."""

TOLERANCE = 1e-6


def say(text, role="assistant"):
    """Return a message of a chat."""
    return {"role": role, "content": text}
