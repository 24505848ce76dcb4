# ruff: noqa: RUF001 - letters that look alike are what this is about
"""Names of voices in any script: one voice has one name, and no name leaves the folder."""

import unicodedata
from pathlib import Path

import pytest

from megatalker.errors import InvalidRequestError
from megatalker.voices.folder import Manifest, Recording, add_recording, find_voice, remove_voice, voices_in
from megatalker.voices.names import check_name, name_key
from voice_recordings import WORDS, speech, wav

RECORDING = Recording(Manifest(), wav(speech()), WORDS)


@pytest.mark.parametrize(
    "name",
    [
        "anna",
        "Anna Lena",
        "d'Artagnan",
        "O\u2019Brien",
        "_x-1",
        "สมชาย",
        "น้ำผึ้ง",
        "हिन्दी",
        "क़मर",
        "நிலா",
        "Nguyễn Thị",
        "Zoë",
        "محمّد",
        "نمی\u200cدانم",
        "李小龍",
        "さくら",
        "한글",
        "Αθηνά",
        "ѣ" * 64,
        "字" * 64,
    ],
)
def test_names_of_all_scripts_are_names_however_they_are_composed(tmp_path: Path, name: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    assert check_name(decomposed) == check_name(composed) == composed
    assert len(f".{composed}.safetensors.new".encode()) <= 255
    add_recording(tmp_path, decomposed, RECORDING, 30.0)
    assert list(voices_in(tmp_path)) == [composed]
    assert (tmp_path / composed).is_dir()
    with pytest.raises(InvalidRequestError, match="already"):
        add_recording(tmp_path, composed.upper(), RECORDING, 30.0)
    remove_voice(tmp_path, decomposed)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna", "aNNA"),
        ("straße", "STRASSE"),
        ("Ａｎｎａ", "anna"),
        ("ﬁona", "FIONA"),
        ("Zoe\u0308", "ZOË"),
        (" Anna   Lena ", "anna\u00a0lena"),
        ("نمی\u200cدانم", "نمیدانم"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_ways_to_write_a_name_are_one_name(tmp_path: Path, one: str, other: str) -> None:
    assert name_key(one) == name_key(other)
    add_recording(tmp_path, one, RECORDING, 30.0)
    assert find_voice(tmp_path, other) is not None
    with pytest.raises(InvalidRequestError, match="already"):
        add_recording(tmp_path, other, RECORDING, 30.0)


def test_different_names_are_different() -> None:
    names = ["anna", "hanna", "anna lena", "annalena", "anna-lena", "zoe", "zoë", "น้ำ", "นำ", "हिन्दी", "हिनदी"]
    assert len({name_key(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "\u0301", "\u0301a", "-a", "'a", "..", ".a", "a.b", "a/b", "a\\b", "a\0b", "a\nb", "a\x1b[0m",
        "a\u202eb", "a\ufeffb", "\ud83d", "🎉", "a+b", "a:b", "a%2fb", "con", "NUL", "Com1",
        "x" * 65, "字" * 65, "𒀀" * 64, "a" * 10**6,
        "\u0345\u0300" * 10**5,
    ],
)  # fmt: skip
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="a voice cannot be named") as refusal:
        check_name(name)
    assert len(str(refusal.value)) < 1_200
    name_key(name)


def test_names_on_disk_may_be_decomposed(tmp_path: Path) -> None:
    """Some file systems keep names in this form."""
    add_recording(tmp_path, "Zoë", RECORDING, 30.0)
    (tmp_path / "Zoë").rename(tmp_path / "Zoe\u0308")
    assert list(voices_in(tmp_path)) == ["Zoë"]
    (tmp_path / "zoë.safetensors").touch()
    with pytest.raises(InvalidRequestError, match="two voices are named"):
        voices_in(tmp_path)
    remove_voice(tmp_path, "zoë")
    assert list(voices_in(tmp_path)) == ["Zoë"], "the one that is written like this is gone"
    remove_voice(tmp_path, "ZOË")
    assert not list(tmp_path.iterdir())
