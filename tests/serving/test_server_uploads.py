"""Uploads of voices that meet others, a full disk, or the end of the server: a status that says so, and no rubbish."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from megatalker.checkpoint import Checkpoint
from serving import Served, serving
from voice_recordings import WORDS, speech, wav
from waiting import HANG_S

pytestmark = pytest.mark.usefixtures("quick_clones")
AUDIO = wav(speech())


def upload(served: Served, name: Any, audio: bytes = AUDIO) -> httpx.Response:
    data = {"name": name, "transcript": WORDS}
    return httpx.post(served.url + "/v1/voices", data=data, files={"reference": ("a.wav", audio)}, timeout=HANG_S)


def test_of_uploads_of_one_name_at_once_one_is_added_and_the_others_are_refused(
    tiny_base: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / ".anna.new").mkdir()
    (tmp_path / ".anna.gone" / "inner").mkdir(parents=True)
    (tmp_path / "lost+found").mkdir()
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        for name in ("anna", "bert"):
            answers: list[int] = []
            threads = [
                threading.Thread(target=lambda name, told: told.append(upload(served, name).status_code), args=each)
                for each in [(name, answers)] * 4
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(HANG_S)
            assert sorted(answers) == [201, 409, 409, 409]
        assert httpx.delete(served.url + "/v1/voices/anna").status_code == 204
        assert upload(served, "anna").status_code == 201


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EROFS, 503), (errno.EACCES, 503)]
)
def test_a_disk_that_refuses_a_voice_is_a_status_without_its_path(
    tiny_base: Checkpoint, tmp_path: Path, number: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        assert upload(served, "bert").status_code == 201
        with monkeypatch.context() as patch:
            patch.setattr("megatalker.voices.folder.tempfile.mkdtemp", refuse)
            for answer in (upload(served, "anna"), httpx.delete(served.url + "/v1/voices/bert")):
                assert answer.status_code == status
                assert str(tmp_path) not in answer.text
                assert os.strerror(number) in answer.json()["error"]["message"]
        assert upload(served, "anna").status_code == 201
        with monkeypatch.context() as patch:  # what does not fit into memory is spooled to a disk, too
            patch.setattr("tempfile.SpooledTemporaryFile.write", refuse)
            answer = upload(served, "carl")
            assert (answer.status_code, str(tmp_path) in answer.text) == (status, False)


@pytest.mark.parametrize("name", ["\ud83d!", "a\0b", "..", "a" * 300, "%ED%A0%80"])
def test_odd_names_are_client_errors(tiny_base: Checkpoint, tmp_path: Path, name: str) -> None:
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        raw = name.encode(errors="surrogatepass")
        body = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + raw + b"\r\n"
        body += b'--x\r\nContent-Disposition: form-data; name="reference"; filename="a.wav"\r\n\r\n' + AUDIO
        headers = {"content-type": "multipart/form-data; boundary=x"}
        answer = httpx.post(served.url + "/v1/voices", content=body + b"\r\n--x--\r\n", headers=headers, timeout=HANG_S)
        assert 400 <= answer.status_code < 500
        gone = httpx.delete(served.url + "/v1/voices/%ED%A0%80")
        assert 400 <= gone.status_code < 500
        for field in ("voice", "voice_file"):
            content = b'{"input": "Hi.", "%s": "\\ud83d"}' % field.encode()
            said = httpx.post(served.url + "/v1/audio/speech", content=content, timeout=HANG_S)
            assert 400 <= said.status_code < 500
    assert not list(tmp_path.iterdir())


def test_a_server_that_stops_while_voices_are_uploaded_leaves_no_rubbish(tiny_base: Checkpoint, tmp_path: Path) -> None:
    begun = threading.Event()

    def send(served: Served, number: int) -> None:
        begun.set()
        with suppress(httpx.HTTPError):
            upload(served, f"voice{number}")

    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        threads = [threading.Thread(target=send, args=(served, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        begun.wait(HANG_S)
    for thread in threads:
        thread.join(HANG_S)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert all((path / "manifest.json").exists() for path in tmp_path.iterdir())
