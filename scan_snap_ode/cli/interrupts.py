"""Ctrl-C and SIGTERM: heard for sure, obeyed once, and never in the middle of writing results."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


def say(text: str) -> None:
    """One line on standard error."""
    typer.echo(f"scan-snap: {' '.join(text.split())}", err=True)


@contextmanager
def heard() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt; later ones wait for what is done to be saved."""
    obeyed: list[int] = []
    report = sys.unraisablehook

    def press(signum: int, frame: Any) -> None:
        if obeyed:
            say("stopping already, what is done is being saved (ctrl-\\ ends at once)")
            return
        obeyed.append(signum)
        raise KeyboardInterrupt

    def lost(unraisable: Any) -> None:
        """One raised inside a callback, such as JAX's at garbage collection, vanishes there."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
            return
        obeyed.clear()
        again = threading.Timer(0.05, _thread.interrupt_main)
        again.daemon = True
        again.start()

    sys.unraisablehook = lost
    try:
        with _handled_by(press, signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        sys.unraisablehook = report


@contextmanager
def finishing() -> Iterator[None]:
    """Results are written to their end: a signal meanwhile is obeyed afterwards."""
    pressed: list[int] = []

    def later(signum: int, frame: Any) -> None:
        pressed.append(signum)
        say("writing the results, then stopping")

    with _handled_by(later, signal.SIGINT, signal.SIGTERM):
        yield
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def _handled_by(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
