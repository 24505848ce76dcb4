"""C2PA: signed manifests in files of speech, and what a file's manifest says."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

from megatalker.errors import SettingsError, UnsupportedError, describe_error
from megatalker.serving.audio import SOURCE_TYPE
from megatalker.settings import C2paSettings

SIGNABLE: Mapping[str, str] = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "m4a": "audio/mp4",
}
"""Formats that have a place for a manifest, by the endings of file names."""
EXTRA = "install the extra: pip install 'megatalker[c2pa]'"


class FileSigner:
    """Signs whole files with the key in the settings. Thread-safe.

    Args:
        settings: with both files.

    Raises:
        SettingsError: a file is missing, cannot be read, or the two cannot sign together.
        UnsupportedError: the package is not installed.
    """

    def __init__(self, settings: C2paSettings) -> None:
        c2pa = _package()
        chain = _read("c2pa.certificates", settings.certificates)
        key = _read("c2pa.private_key", settings.private_key)
        self._information = c2pa.C2paSignerInfo(settings.algorithm, chain, key, None)
        try:
            c2pa.Signer.from_info(self._information).close()
        except c2pa.C2paError as error:
            raise SettingsError(
                "the files of settings 'c2pa.certificates' and 'c2pa.private_key' cannot sign with "
                f"{settings.algorithm}: {error}"
            ) from error

    @classmethod
    def configured(cls, settings: C2paSettings) -> "FileSigner | None":
        """Return the signer of these settings; ``None`` where they name no key. Raises as the class."""
        if settings.certificates is None and settings.private_key is None:
            return None
        return cls(settings)

    def sign(self, source: BinaryIO, target: BinaryIO, media_type: str) -> None:
        """Write the file with a manifest which says that a model made it.

        Args:
            source: the file, which can seek.
            target: takes the signed one; can seek and be read.
            media_type: a value of :data:`SIGNABLE`.

        Raises:
            UnsupportedError: it cannot be signed.
        """
        c2pa = _package()
        try:
            with c2pa.Signer.from_info(self._information) as signer, c2pa.Builder(_manifest()) as builder:
                builder.sign(signer, media_type, source, target)
        except c2pa.C2paError as error:
            raise UnsupportedError(f"the file cannot be signed: {describe_error(error)}") from error

    def sign_file(self, path: Path, media_type: str) -> None:
        """Put the signed file in the place of ``path``; raises as :meth:`sign`, or ``OSError``."""
        signed = path.with_name(f".{path.name}.signed")
        try:
            with path.open("rb") as source, signed.open("w+b") as target:
                self.sign(source, target, media_type)
            shutil.copymode(path, signed)
            signed.replace(path)
        finally:
            signed.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ManifestFinding:
    """The active manifest of a file."""

    state: Literal["valid", "trusted", "invalid"]
    """``valid``: the file is as it was signed, by a certificate that nobody here vouches for."""
    synthetic: bool
    """It says that a trained model made the media."""
    signer: str
    """Organisation and name in the certificate."""
    generator: str
    """The program that made the claim."""
    problems: tuple[str, ...]
    """Codes of C2PA for what is wrong."""


def read_manifest(path: Path) -> ManifestFinding | None:
    """Return what the file's manifest says; ``None`` where it has none.

    Raises:
        UnsupportedError: the package is not installed.
    """
    c2pa = _package()
    try:
        with path.open("rb") as file:
            reader = c2pa.Reader.try_create(file)
            if reader is None:
                return None
            with reader:
                store = json.loads(reader.json())
    except c2pa.C2paError:  # of a format that has no place for one
        return None
    return _finding(store)


def _finding(store: Mapping[str, Any]) -> ManifestFinding:
    manifest = store["manifests"][store["active_manifest"]]
    signature, generators = manifest.get("signature_info", {}), manifest.get("claim_generator_info") or [{}]
    actions = [
        action
        for assertion in manifest.get("assertions", [])
        if assertion["label"].startswith("c2pa.actions")
        for action in assertion["data"].get("actions", [])
    ]
    state: str = store["validation_state"].lower()
    return ManifestFinding(
        state="valid" if state == "valid" else "trusted" if state == "trusted" else "invalid",
        synthetic=any(action.get("digitalSourceType") == SOURCE_TYPE for action in actions),
        signer=", ".join(filter(None, (signature.get("issuer"), signature.get("common_name")))),
        generator=" ".join(filter(None, (generators[0].get("name"), generators[0].get("version")))),
        problems=tuple(status["code"] for status in store.get("validation_status", [])),
    )


def _manifest() -> dict[str, Any]:
    program = {"name": "megatalker", "version": version("megatalker")}
    created = {"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE, "softwareAgent": program}
    return {
        "claim_generator_info": [program],
        "title": "Synthetic speech",
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [created]}}],
    }


def _read(setting: str, path: Path | None) -> bytes:
    if path is None:
        raise SettingsError(f"setting {setting!r} is missing; a manifest needs the certificates and the private key")
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"the file of setting {setting!r} cannot be read: {error.strerror}") from error


def _package() -> Any:
    try:
        import c2pa
    except ImportError as error:
        raise UnsupportedError(f"signed manifests need the package c2pa-python; {EXTRA}") from error
    return c2pa
