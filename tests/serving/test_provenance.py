"""Files with signed manifests, as C2PA's own reader sees them."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from http_client import post
from megatalker.checkpoint import Checkpoint
from megatalker.cli.say.destination import Destination
from megatalker.errors import SettingsError, UnsupportedError
from megatalker.serving.audio import SOURCE_TYPE
from megatalker.serving.detection import inspect_file
from megatalker.serving.provenance import FileSigner, read_manifest
from megatalker.settings import C2paSettings
from serving import Served, serving
from signing import Credentials, make_credentials

c2pa = pytest.importorskip("c2pa")
SOUND = (0.3 * np.sin(2 * np.pi * 220 * np.arange(24_001) / 24_000)).astype(np.float32)
TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "m4a": "audio/mp4"}


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return make_credentials(tmp_path_factory.mktemp("credentials"))


@pytest.fixture(scope="module")
def key(credentials: Credentials) -> C2paSettings:
    return C2paSettings(certificates=credentials.certificates, private_key=credentials.private_key)


@pytest.fixture(scope="module")
def signed(tiny_custom_voice: Checkpoint, key: C2paSettings) -> Iterator[Served]:
    with serving(tiny_custom_voice, c2pa=key) as served:
        yield served


def require_signed(content: bytes, media_type: str, credentials: Credentials) -> None:
    """The reader trusts it with this authority, and finds a changed sample."""
    trust = {"trust": {"trust_anchors": credentials.authority.read_text()}, "verify": {"verify_trust": True}}
    with c2pa.Reader(media_type, io.BytesIO(content), context=c2pa.Context.from_dict(trust)) as reader:
        assert reader.get_validation_state() == "Trusted"
        store: Any = json.loads(reader.json())
    assertions = store["manifests"][store["active_manifest"]]["assertions"]
    (action,) = next(one["data"]["actions"] for one in assertions if one["label"].startswith("c2pa.actions"))
    assert (action["action"], action["digitalSourceType"]) == ("c2pa.created", SOURCE_TYPE)
    changed = bytearray(content)
    changed[content.index(b"data") + 100 if media_type == "audio/wav" else -50] ^= 1
    with c2pa.Reader(media_type, io.BytesIO(bytes(changed))) as reader:
        assert reader.get_validation_state() == "Invalid"


def say(path: Path, key: C2paSettings | None) -> Path:
    destination = Destination(str(path), play=False, c2pa=key)
    destination.write(SOUND)
    destination.finish()
    return path


@pytest.mark.parametrize("ending", list(TYPES))
def test_files_of_the_command_line_are_signed(
    ending: str, tmp_path: Path, key: C2paSettings, credentials: Credentials
) -> None:
    path = say(tmp_path / f"x.{ending}", key)
    require_signed(path.read_bytes(), TYPES[ending], credentials)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac"])
def test_whole_files_over_http_are_signed(signed: Served, kind: str, credentials: Credentials) -> None:
    response = post(signed, response_format=kind, stream=False)
    assert response.headers["x-megatalker-signed"] == "c2pa"
    assert len(response.content) == int(response.headers["content-length"])
    require_signed(response.content, TYPES[kind], credentials)


def test_streams_and_other_formats_are_not(signed: Served, tmp_path: Path) -> None:
    for fields in ({"response_format": "wav"}, {"response_format": "opus", "stream": False}):
        response = post(signed, **fields)
        assert "x-megatalker-signed" not in response.headers
        (tmp_path / "x").write_bytes(response.content)
        assert read_manifest(tmp_path / "x") is None


def test_a_format_without_a_place_is_told(tmp_path: Path, key: C2paSettings, caplog: pytest.LogCaptureFixture) -> None:
    say(tmp_path / "x.opus", key)
    assert "is not signed: C2PA has no place in opus; wav, mp3, flac, m4a have" in caplog.text


def test_detect_tells_what_the_manifest_says(tmp_path: Path, key: C2paSettings) -> None:
    path = say(tmp_path / "x.wav", key)
    found = inspect_file(path, []).manifest
    assert found is not None
    assert (found.state, found.synthetic, found.signer) == ("valid", True, "Example, Example speaker")
    assert found.problems == ("signingCredential.untrusted",)
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    changed = inspect_file(path, []).manifest
    assert changed is not None
    assert changed.state == "invalid"
    assert "assertion.dataHash.mismatch" in changed.problems


def test_no_key_signs_nothing(tmp_path: Path) -> None:
    assert FileSigner.configured(C2paSettings()) is None
    assert inspect_file(say(tmp_path / "x.wav", C2paSettings()), []).manifest is None


def test_keys_that_cannot_sign_are_refused(tmp_path: Path, credentials: Credentials, key: C2paSettings) -> None:
    with pytest.raises(SettingsError, match=r"'c2pa\.private_key' is missing"):
        FileSigner.configured(C2paSettings(certificates=credentials.certificates))
    with pytest.raises(SettingsError, match=r"the file of setting 'c2pa\.certificates' cannot be read: No such file"):
        FileSigner(key.model_copy(update={"certificates": tmp_path / "nothing"}))
    (tmp_path / "bad.pem").write_text("no key")
    with pytest.raises(SettingsError, match="cannot sign with es256"):
        FileSigner(key.model_copy(update={"private_key": tmp_path / "bad.pem"}))


def test_a_missing_package_names_its_extra(key: C2paSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = say(tmp_path / "x.wav", None)
    monkeypatch.setitem(sys.modules, "c2pa", None)
    with pytest.raises(UnsupportedError, match=r"install the extra: pip install 'megatalker\[c2pa\]'"):
        FileSigner(key)
    assert inspect_file(plain, []).manifest_unread is not None
