"""Work in the background: no exception is lost, its users are told, and work that can be repeated is repeated."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fake_backend import Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendFaultError, CheckpointError, ConnectionFailedError, EngineClosedError
from megatalker.serving import background
from megatalker.serving.background import (
    BackgroundHealth,
    RecoverableError,
    count_lost_exceptions,
    polling,
    start_task,
    start_thread,
)
from megatalker.serving.client import RemoteEngine
from megatalker.serving.server.address import bind
from megatalker.serving.server.information import TROUBLE_S
from megatalker.serving.server.keyring import hash_key
from megatalker.serving.server.lazy_engine import LazyEngine
from megatalker.serving.server.process import TalkServer
from megatalker.serving.shared_engines.pool import EnginePool
from megatalker.settings import ServerSettings, Settings
from megatalker.voices.library import VoiceLibrary
from serving import Served, Server, in_process
from waiting import HANG_S, eventually

ODD = (RuntimeError("odd"), MemoryError(), OSError(28, "No space left on device", "/srv/secret"), SystemExit(3))


def metric(served: Served, name: str, work: str) -> float:
    lines = httpx.get(served.url + "/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(f'megatalker_background_{name}{{work="{work}"}}')]
    return float(found[0].rsplit(" ", 1)[1]) if found else -1


# ---- the helper


@pytest.mark.parametrize("error", [RuntimeError("odd"), MemoryError()], ids=repr)
def test_a_task_s_exception_is_logged_and_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []

    async def fail() -> None:
        raise error

    async def main() -> None:
        task = start_task(fail(), "work", told.append)
        await asyncio.wait([task])
        cancelled = start_task(asyncio.sleep(HANG_S), "other work", told.append)
        cancelled.cancel()
        await asyncio.wait([cancelled])

    asyncio.run(main())
    assert told == [error]
    assert [record.message for record in caplog.records] == ["work failed"]
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("error", ODD, ids=repr)
def test_a_thread_s_exception_is_logged_and_told(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []

    def fail() -> None:
        raise error

    start_thread(fail, "work", told.append).join(HANG_S)
    assert told == [error]
    assert "work failed" in caplog.text


def test_looks_go_on_after_every_failure_and_tell_each_trouble_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pauses: list[float] = []
    outcomes = [None, *[RecoverableError("it is gone", "/srv/x")] * 3, *[ValueError("a bug")] * 7, None, None]
    health = BackgroundHealth()
    seen: list[dict[str, str]] = []
    sleep = asyncio.sleep

    async def main() -> None:
        over = asyncio.Event()

        async def look() -> None:
            seen.append(health.troubles())
            if not outcomes:
                over.set()
                return
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome

        async def quick(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr(background.asyncio, "sleep", quick)
        monkeypatch.setattr(background, "POLL_SHARE", 1e9)
        async with polling(look, "work", health):
            await over.wait()

    asyncio.run(main())
    assert health.failures() == {"work": 10}
    assert seen[2:5] == [{"work": "it is gone"}] * 3
    assert seen[5] == {"work": "it fails (ValueError)"}
    assert health.troubles() == {}
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING"]
    assert "/srv/x" in caplog.text, "the log says where"
    assert pauses[:4] == pytest.approx([1.0] * 4), "a trouble that may end at any time does not lengthen the pauses"
    assert pauses[4:11] == pytest.approx([2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0])
    assert pauses[11] == pytest.approx(1.0)


def test_a_trouble_is_told_once_it_has_lasted() -> None:
    now = 0.0
    health = BackgroundHealth(lambda: now)
    health.failed("keys", "gone")
    now = 29.0
    health.failed("keys", "unreadable")
    assert (health.troubles(), health.troubles(30)) == ({"keys": "unreadable"}, {})
    now = 30.0
    assert health.troubles(30) == {"keys": "unreadable"}, "its age counts from the first message of the trouble"
    assert health.well("keys")
    assert health.troubles() == {}


def test_exceptions_that_the_event_loop_logs_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    health = BackgroundHealth()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        count_lost_exceptions(loop, health)
        loop.call_soon(lambda: 1 / 0)
        loop.call_later(0, lambda: 1 / 0)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert health.failures() == {"event loop": 2}
    assert caplog.text.count("ZeroDivisionError") == 2


# ---- warm-up


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("error", [*ODD, CheckpointError("ours")], ids=repr)
def test_an_engine_that_cannot_be_opened_ends_the_server_with_the_error(
    tiny_custom_voice: Checkpoint,
    error: BaseException,
    lazy: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("megatalker.engine.Engine.open", fail)
    settings = Settings(server=ServerSettings(port=0, lazy=lazy))
    with bind(settings.server) as bound:
        server = TalkServer(
            LazyEngine(settings, tiny_custom_voice, in_process(Fakes().registry)), settings.server, bound
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        if lazy:
            eventually(lambda: server.started, "it listens")
            refused = httpx.post(server.url + "/v1/audio/speech", json={"input": "Hi."}, timeout=HANG_S)
            assert refused.status_code == 500
            assert "/srv" not in refused.text
        thread.join(HANG_S)
        assert not thread.is_alive(), "it is warming up for ever"
    assert server.failure is not None
    assert server.service.status == "failed"
    if isinstance(error, CheckpointError):
        assert server.failure is error
    else:
        assert isinstance(server.failure, BackendFaultError)
        assert type(error).__name__ in str(server.failure)
        assert type(error).__name__ in caplog.text
        assert "/srv" not in str(server.failure)


# ---- keys


def write(file: Path, *names: str, more: str = "") -> None:
    keys = "".join(f'[server.keys.{name}]\nhash = "{hash_key("mt-" + name)}"\n' for name in names)
    beside = file.with_suffix(".beside")
    beside.write_text(more + keys)
    beside.replace(file)


def opens(served: Served, name: str) -> bool:
    headers = {"Authorization": f"Bearer mt-{name}"}
    return httpx.get(served.url + "/v1/models", headers=headers).status_code == 200


Hide = Callable[[Path], Callable[[], object]]


def moved(file: Path) -> Callable[[], object]:
    file.rename(file.with_suffix(".away"))
    return lambda: None


def folder(file: Path) -> Callable[[], object]:
    file.unlink()
    file.mkdir()
    return file.rmdir


def folder_away(file: Path) -> Callable[[], object]:
    """Replace the folder, as if a volume was unmounted and mounted again: watchers of the old one see nothing."""
    away = file.parent.with_name("away")
    file.parent.rename(away)
    return file.parent.mkdir


@pytest.mark.parametrize("hide", [moved, folder, folder_away], ids=lambda hide: hide.__name__)
def test_a_key_that_was_removed_while_the_file_could_not_be_read_stops_working(
    serve: Server, tmp_path: Path, hide: Hide, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_PERIOD_S", 0.05)
    file = tmp_path / "inner" / "keys.toml"
    file.parent.mkdir()
    write(file, "anna", "bert")
    served = serve(settings_file=file, server={"keys": {"anna": {"hash": hash_key("mt-anna")}}})
    eventually(lambda: opens(served, "bert"), "it was read")
    bring_back = hide(file)
    eventually(lambda: metric(served, "troubled", "keys") == 1, "it is missed")
    assert opens(served, "anna")
    assert opens(served, "bert"), "known keys are kept"
    assert "the keys stay as they were" in caplog.text
    ready = httpx.get(served.url + "/ready")
    assert (ready.status_code, "background" in ready.json()) == (200, False), "a trouble of a moment is not reported"
    health = served.server.service.metrics.background
    monkeypatch.setattr(health, "_clock", lambda: time.monotonic() + TROUBLE_S)
    told = httpx.get(served.url + "/ready")
    assert (told.status_code, list(told.json()["background"])) == (200, ["keys"])
    assert str(tmp_path) not in told.text
    bring_back()
    write(file, "anna")
    eventually(lambda: not opens(served, "bert"), "the removed key is closed")
    assert opens(served, "anna")
    eventually(lambda: metric(served, "troubled", "keys") == 0, "all is well")
    assert metric(served, "failures_total", "keys") >= 1
    assert "background" not in httpx.get(served.url + "/ready").json()


@pytest.mark.parametrize(
    "wrong",
    ['[server]\nport = "x"\n', "voise = 3\n", f'[server.keys.carl]\nhash = "{"0" * 9}"\n', "[server.keys.api_key]\n"],
)
def test_a_key_that_is_no_longer_in_a_file_with_a_mistake_stops_working(
    serve: Server, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_PERIOD_S", 0.05)
    file = tmp_path / "keys.toml"
    write(file, "anna", "bert")
    served = serve(settings_file=file)
    eventually(lambda: opens(served, "bert"), "it was read")
    assert not opens(served, "nobody")
    write(file, "anna", more=wrong)
    eventually(lambda: not opens(served, "bert"), "the removed key is closed")
    assert opens(served, "anna")
    eventually(lambda: "removed the keys bert" in caplog.text, "the log says so")
    write(file, "anna", "carl")
    eventually(lambda: opens(served, "carl"), "the mistake is mended")


def test_a_settings_file_that_is_a_pipe_blocks_no_request(
    serve: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setattr(background, "POLL_PERIOD_S", 0.05)
    file = tmp_path / "keys.toml"
    write(file, "anna")
    served = serve(settings_file=file)
    eventually(lambda: opens(served, "anna"), "it was read")
    file.unlink()
    os.mkfifo(file)
    eventually(lambda: metric(served, "troubled", "keys") == 1, "it is told")
    file.unlink()
    write(file, "bert")
    eventually(lambda: opens(served, "bert") and not opens(served, "anna"), "it is followed again")


@pytest.mark.parametrize("target", ["keyring.Keyring.replace", "keyring.KeyFile._read", "keyring.asyncio.to_thread"])
def test_a_failure_in_following_the_keys_ends_nothing(
    serve: Server, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_PERIOD_S", 0.02)
    file = tmp_path / "keys.toml"
    write(file, "anna")
    served = serve(settings_file=file)
    eventually(lambda: opens(served, "anna"), "it was read")

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(f"megatalker.serving.server.{target}", fail)
        write(file, "bert")
        eventually(lambda: metric(served, "troubled", "keys") == 1, "it is told")
    eventually(lambda: opens(served, "bert") and not opens(served, "anna"), "it is tried again")


# ---- voices


def test_a_failure_in_following_the_voices_ends_nothing(
    serve: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_PERIOD_S", 0.02)
    served = serve(server={"voices_dir": tmp_path})
    look = VoiceLibrary.refresh_if_changed

    def fail(_library: VoiceLibrary) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(VoiceLibrary, "refresh_if_changed", fail)
    eventually(lambda: metric(served, "troubled", "voices") == 1, "it is told")
    monkeypatch.setattr(VoiceLibrary, "refresh_if_changed", look)
    eventually(lambda: metric(served, "troubled", "voices") == 0, "it goes on")
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    eventually(lambda: metric(served, "troubled", "voices") == 1, "the folder is missed")
    tmp_path.mkdir()
    eventually(lambda: metric(served, "troubled", "voices") == 0, "it is back")


# ---- clients and pools


@pytest.mark.parametrize("part", ["_write", "_watch", "_take", "_main"])
def test_a_failed_client_thread_fails_all_waiting_streams(
    serve: Server, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Any:
        raise KeyError("a bug")

    async def fail_later(*_: object) -> None:
        await asyncio.sleep(0.05)
        raise KeyError("a bug")

    served = serve()
    target = fail if part == "_take" else fail_later
    monkeypatch.setattr(f"megatalker.serving.client.connection.RemoteConnection.{part}", target)
    with RemoteEngine(served.url) as engine, pytest.raises(ConnectionFailedError, match="failed"):
        [engine.speak("Hello.").read_all() for _ in range(2)]
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("error", ODD, ids=repr)
def test_an_engine_that_a_pool_cannot_load_or_close_is_told(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Any:
        raise error

    pool = EnginePool(fail)
    lease = pool.begin(Settings())
    expected = BackendFaultError if isinstance(error, SystemExit) else type(error)
    with pytest.raises(expected):
        asyncio.run(lease.loaded())
    assert f"cannot be loaded: {type(error).__name__}" in caplog.text

    class UnclosableEngine:
        close = fail

    pool = EnginePool(lambda _settings: UnclosableEngine())  # type: ignore[arg-type, return-value]
    closed = pool.begin(Settings()).leave()
    closed.result(HANG_S)
    eventually(lambda: "megatalker-close failed" in caplog.text, "it is logged")


def test_closing_is_no_failure(serve: Server, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    engine = RemoteEngine(served.url)
    stream = engine.speak(None)
    engine.close()
    with pytest.raises(EngineClosedError):
        stream.read_all()
    assert not [record for record in caplog.records if "failed" in record.message]
