"""Locks: reentrant, and free in the child of a fork."""

import os
import threading

import pytest

from bertscore_tm.device.locks import Lock, cached_property

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
FREE, HELD = 0, 1


def is_free(lock: Lock) -> bool:
    """Return whether another thread gets the lock within a second."""
    entered = threading.Event()

    def enter() -> None:
        with lock:
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered.wait(1)


def status_in_child(lock: Lock) -> int:
    """Fork, and return whether the lock is free for threads of the child."""
    child = os.fork()
    if child == 0:
        os._exit(FREE if is_free(lock) else HELD)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_thread_may_enter_a_lock_twice():
    lock = Lock()

    with lock, lock:
        assert not is_free(lock)

    assert is_free(lock)


def test_a_lock_of_another_thread_is_free_after_a_fork():
    lock = Lock()
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert status_in_child(lock) == FREE
    finally:
        release.set()
        thread.join()


def test_the_forking_thread_keeps_its_lock():
    lock = Lock()

    with lock:
        assert status_in_child(lock) == HELD


def test_a_cached_property_is_computed_once():
    calls = []

    class Owner:
        @cached_property
        def value(self) -> int:
            calls.append(self)
            return 5

    owner = Owner()

    assert (owner.value, owner.value, len(calls)) == (5, 5, 1)
