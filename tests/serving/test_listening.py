"""Messages are taken as they come, in a thread or in an event loop, which gives way to threads."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import zmq

import process_backends
from megatalker.checkpoint import Checkpoint
from megatalker.serving import background
from megatalker.serving.background import NAP_S, giving_way
from megatalker.serving.processes.listening import MOST_IN_A_TURN, LoopListener, ThreadListener, Work
from megatalker.serving.processes.supervisor import EngineSupervisor
from megatalker.serving.server.address import bind
from megatalker.serving.server.front_end import FrontEnd
from megatalker.serving.server.front_end_orders import DRAIN, FrontEndStart
from megatalker.serving.server.places import Places
from process_stage import process_settings
from waiting import HANG_S, eventually

BURST = 10 * MOST_IN_A_TURN
MESSAGES = [b"%d" % number for number in range(BURST)]


class ListenerLog:
    """All that a listener did."""

    def __init__(self, refused: bytes = b"") -> None:
        self.messages: list[bytes] = []
        self.threads: set[int] = set()
        self.looks = 0
        self.failures: list[BaseException] = []
        self._refused = refused

    @property
    def work(self) -> Work:
        return Work("hearing", self._take, self._look, self.failures.append)

    def _take(self, message: bytes) -> None:
        if message == self._refused:
            raise MemoryError(message)
        self.messages.append(message)
        self.threads.add(threading.get_ident())

    def _look(self) -> None:
        self.looks += 1


@pytest.fixture
def sockets() -> Iterator[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]]:
    """One that sends and one that takes."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender, context.socket(zmq.PULL) as taker:
        taker.set_hwm(0)
        taker.bind("inproc://here")
        sender.set_hwm(0)
        sender.connect("inproc://here")
        yield sender, taker


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def listening(kind: str, socket: "zmq.Socket[bytes]", heard: ListenerLog) -> Iterator[LoopListener | ThreadListener]:
    """A listener of this kind."""
    if kind == "thread":
        yield ThreadListener(socket, heard.work)
        return
    with running_loop() as loop:
        yield LoopListener(loop, socket, heard.work)


KINDS = pytest.mark.parametrize("kind", ["thread", "loop"])
Sockets = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@KINDS
def test_all_messages_are_taken_in_order_in_one_thread_until_it_is_stopped(kind: str, sockets: Sockets) -> None:
    (sender, taker), heard = sockets, ListenerLog()
    with listening(kind, taker, heard) as listener:
        for message in MESSAGES:
            sender.send(message)
        eventually(lambda: heard.messages == MESSAGES, "all were taken")
        for message in MESSAGES:  # after all had been read
            sender.send(message)
        eventually(lambda: heard.messages == 2 * MESSAGES, "all were taken again")
        eventually(lambda: heard.looks > 2, "it looks again and again")
        listener.stop()
        looks = heard.looks
        sender.send(b"late")
        listener.stop()
        assert taker.recv() == b"late"
    assert heard.looks == looks
    assert len(heard.threads) == 1
    assert not heard.failures


@KINDS
def test_what_fails_is_told_once_and_ends_it(kind: str, sockets: Sockets, caplog: pytest.LogCaptureFixture) -> None:
    (sender, taker), heard = sockets, ListenerLog(refused=MESSAGES[3])
    with listening(kind, taker, heard) as listener:
        for message in MESSAGES:
            sender.send(message)
        eventually(lambda: heard.failures, "it was told")
        listener.stop()
    assert heard.messages == MESSAGES[:3]
    assert [str(error) for error in heard.failures] == [str(MemoryError(MESSAGES[3]))]
    assert "hearing failed" in caplog.text


def test_an_event_loop_takes_them_itself_and_lets_others_run_between_parts_of_a_burst(sockets: Sockets) -> None:
    (sender, taker), heard = sockets, ListenerLog()
    turns: list[int] = []

    async def main() -> None:
        for message in MESSAGES:
            sender.send(message)
        listener = LoopListener(asyncio.get_running_loop(), taker, heard.work)
        while len(heard.messages) < BURST:
            turns.append(len(heard.messages))
            await asyncio.sleep(0)
        listener.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert heard.threads == {threading.get_ident()}
    assert max(b - a for a, b in itertools.pairwise([*turns, BURST])) <= MOST_IN_A_TURN


@pytest.mark.parametrize("closed", [False, True], ids=["stands still", "closed"])
def test_it_can_be_stopped_when_its_loop_runs_no_more(closed: bool, sockets: Sockets) -> None:
    loop, heard = asyncio.new_event_loop(), ListenerLog()
    listener = LoopListener(loop, sockets[1], heard.work)
    loop.run_until_complete(asyncio.sleep(0.05))
    if closed:
        loop.close()
    listener.stop()
    listener.stop()
    loop.close()
    assert heard.looks


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_an_event_loop_sleeps_now_and_then_where_it_is_always_busy(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(background, "time", SimpleNamespace(**vars(time) | {"sleep": naps.append}))

    async def main() -> None:
        until = time.monotonic() + (HANG_S if busy else 0.5)
        async with giving_way():
            while time.monotonic() < until and len(naps) < 3:
                await asyncio.sleep(0 if busy else 0.01)

    asyncio.run(main())
    assert naps == ([NAP_S] * 3 if busy else [])


@pytest.mark.slow
def test_a_front_end_hears_its_engines_in_its_event_loop(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    settings = process_settings(server={"port": 0})
    checkpoint = tiny_custom_voice.folder, tiny_custom_voice.name
    supervisor = EngineSupervisor(settings, checkpoint, ["cpu"], process_backends.paced)
    Places.create(tmp_path / "places")
    bound = bind(settings.server)
    url, told = f"http://127.0.0.1:{bound.getsockname()[1]}", list[bytes]()
    start = FrontEndStart(
        number=1,
        settings=settings,
        checkpoint=checkpoint,
        socket=bound.detach(),
        wyoming=None,
        supervisor=supervisor.address,
        folder=supervisor.folder,
        settings_file=None,
        usage=tmp_path / "usage",
        places=tmp_path / "places",
        front_ends=1,
        others_serve=False,
        log_levels={},
    )
    server = FrontEnd(start, told.append)  # type: ignore[arg-type] # all that it does is to send
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: told, "it serves")
    names = {one.name for one in threading.enumerate()}
    assert server._loop is not None
    tasks = {one.get_name() for one in asyncio.all_tasks(server._loop)}
    answer = httpx.post(url + "/v1/audio/speech", json={"input": "Hello.", "max_frames": 3}, timeout=HANG_S)
    server.obey(DRAIN)
    thread.join(HANG_S)
    supervisor.close()
    assert answer.status_code == 200
    assert not {name for name in names if "engines" in name}
    assert "giving way" in tasks  # to the threads that there are
    assert not thread.is_alive()
