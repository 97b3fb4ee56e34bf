"""Reads devices one after another without waiting for one that does not answer.

Reading a counter asks the adapter's firmware; an adapter in trouble can hold the reader for
minutes, in a wait that takes no signal. One reader thread goes through the devices. When it
stays on one of them too long it is left there, and a new one takes the rest: a hung device costs
its own readings, one thread, and nothing else. It is not asked again while that thread waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass
class _Round(Generic[Answer]):
    names: list[str]
    answers: dict[str, Answer] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    at: str = ""
    since: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)


class Readers(Generic[Answer]):
    """Asks ``read(name)`` of each device, each at most ``patience_seconds`` long."""

    def __init__(
        self,
        read: Callable[[str], Answer],
        patience_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._patience = patience_seconds
        self._monotonic = monotonic
        self._change = threading.Condition()
        self._hung: dict[str, tuple[threading.Thread, float]] = {}

    def hung_seconds(self) -> dict[str, float]:
        """The devices whose reader still waits, and since how many seconds."""
        now = self._monotonic()
        with self._change:
            self._hung = {k: v for k, v in self._hung.items() if v[0].is_alive()}
            return {name: now - since for name, (_, since) in self._hung.items()}

    def ask(
        self, names: Sequence[str], deadline_seconds: float
    ) -> tuple[dict[str, Answer], dict[str, Exception]]:
        """The answers and errors by device; a device in neither did not answer in time."""
        end = self._monotonic() + deadline_seconds
        answers: dict[str, Answer] = {}
        errors: dict[str, Exception] = {}
        hung = self.hung_seconds()
        left = [name for name in names if name not in hung]
        while left and self._monotonic() < end:
            turn: _Round[Answer] = _Round(left)
            thread = threading.Thread(
                target=self._go, args=(turn,), name="infiniband-read", daemon=True
            )
            turn.since = self._monotonic()
            thread.start()
            with self._change:
                while not turn.over.is_set():
                    limit = min(end, turn.since + self._patience)
                    wait = limit - self._monotonic()
                    if wait <= 0:
                        break
                    self._change.wait(wait)
                answers.update(turn.answers)
                errors.update(turn.errors)
                if turn.over.is_set():
                    return answers, errors
                turn.over.set()  # the thread stops when it comes back
                if turn.at:
                    self._hung[turn.at] = (thread, turn.since)
                left = left[left.index(turn.at) + 1 :] if turn.at in left else []
        return answers, errors

    def _go(self, turn: _Round[Answer]) -> None:
        for name in turn.names:
            with self._change:
                if turn.over.is_set():
                    return
                turn.at, turn.since = name, self._monotonic()
                self._change.notify_all()
            answer: Answer | None = None
            error: Exception | None = None
            try:
                answer = self._read(name)
            except Exception as caught:  # one device's trouble is its own
                error = caught
            with self._change:
                if turn.over.is_set():
                    return
                if error is not None:
                    turn.errors[name] = error
                elif answer is not None:
                    turn.answers[name] = answer
        with self._change:
            turn.over.set()
            self._change.notify_all()
