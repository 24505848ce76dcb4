"""Notices a backend call that hangs, and puts another worker in the place of the one inside it."""

import threading

from megatalker.engine.board import Board
from megatalker.engine.worker import Rules, Worker

MAX_PERIOD_S = 1.0


class Watchdog(threading.Thread):
    """Looks at the call in progress a few times per deadline. It cannot help while a hung call holds the GIL."""

    def __init__(self, board: Board, rules: Rules) -> None:
        super().__init__(name="megatalker-watchdog", daemon=True)
        self._board, self._rules = board, rules
        self._period = min(rules.step_deadline_s / 4, MAX_PERIOD_S)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._period):
            self._board.supersede_hung(self._new_worker)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def start_worker(self) -> None:
        """Start a worker of the board's current generation."""
        with self._board.lock:
            self._new_worker()

    def _new_worker(self) -> None:
        self._board.worker = Worker(self._board, self._rules)
        self._board.worker.start()
