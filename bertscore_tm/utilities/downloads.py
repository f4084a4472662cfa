"""Small files from the web."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from urllib.error import URLError

__all__ = ["download"]

_SECONDS = 10.0
_MAX_BYTES = 2**20
# A rank waits for the one that downloads, which needs the time to connect and the time to read.
_WAIT = timedelta(seconds=60)


def download(url: str) -> bytes:
    """Return the content of a small file.

    The ranks of an initialized ``torch.distributed`` share one download.

    Args:
        url: an address that starts with ``https://``.

    Returns:
        At most 1 MiB.

    Raises:
        ValueError: the address has another scheme.
        OSError: the file is larger, the server does not answer within 10 seconds, or it redirects to another scheme.

    Example:
        >>> download("file:///etc/hostname")
        Traceback (most recent call last):
        ValueError: a URL must start with https://, got 'file:///etc/hostname'
    """
    if not url.lower().startswith("https://"):
        raise ValueError(f"a URL must start with https://, got {url!r}")
    return _share(url, lambda: _fetch(url))


def _fetch(url: str) -> bytes:
    end = time.monotonic() + _SECONDS
    # The default opener also has handlers of file:, ftp: and http:, to which a server could redirect.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    content = b""
    try:
        with opener.open(url, timeout=_SECONDS) as response:
            while part := response.read1(_MAX_BYTES):
                content += part
                if len(content) > _MAX_BYTES:
                    raise OSError(f"the file is larger than {_MAX_BYTES} bytes")
                # A server could send a byte at a time for ever.
                if time.monotonic() > end:
                    raise TimeoutError("timed out")
    except OSError as error:
        # The text of an HTTPError, a subclass, has the number too.
        reason = error.reason if type(error) is URLError else error
        raise OSError(f"could not download {url}: {reason}") from error
    return content


def _share(key: str, work: Callable[[], bytes]) -> bytes:
    """Let the first rank that asks do the work, and give its result or its error to the others.

    Without a collective, so that one rank may ask alone.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return work()
    store = distributed.distributed_c10d._get_default_store()
    name = f"bertscore_tm/{key}"
    if store.add(f"{name}/asked", 1) == 1:
        try:
            content = work()
        except OSError as error:
            store.set(name, f"!{error}")
            raise
        store.set(name, f"={content.decode('latin-1')}")
        return content
    try:
        store.wait([name], _WAIT)
    except RuntimeError as error:
        raise OSError(f"could not download {key}: the rank that downloads it did not finish") from error
    result = store.get(name).decode()
    if result.startswith("!"):
        raise OSError(result[1:])
    return result[1:].encode("latin-1")
