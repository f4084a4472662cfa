"""Progress bars."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, unit: str, *, is_shown: bool, initial: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves a progress bar by a number of items, or does nothing if no bar is shown.

    Args:
        total: number of items.
        unit: noun for an item.
        is_shown: show the bar, on standard error.
        initial: number of items that were finished before.
    """
    if not is_shown:
        # Do not use tqdm(disable=True), because it starts a thread, and a child that is forked while this thread holds
        # tqdm's lock waits for it forever.
        yield _do_nothing
        return
    # Imported when items are computed, so that the shell reports errors in arguments and files at once.
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, initial=initial) as bar:

        def advance(number: int) -> None:
            bar.update(number)

        yield advance


def _do_nothing(number: int) -> None:
    """Take the place of a bar's update."""
