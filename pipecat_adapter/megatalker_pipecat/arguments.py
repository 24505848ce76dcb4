"""Sorts constructor arguments, also those of Pipecat's other services, and explains why one is refused."""

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from pipecat.services.tts_service import TTSService
from pipecat.utils.types import is_given

from megatalker.errors import SettingsError
from megatalker_pipecat.settings import MegatalkerTTSSettings

AS_SETTINGS = {"voice": "voice", "voice_id": "voice", "model": "model", "language": "language"}
"""Fields of ``settings`` by the argument that stands for each."""
DECIDED = frozenset({"push_start_frame", "push_stop_frames", "push_text_frames"})
"""Arguments of ``TTSService`` that the service itself gives."""
INSTEAD = {
    "api_key": "no key is needed to speak in this process; for a server that wants one pass "
    "engine=RemoteEngine(url, api_key=...) from megatalker.serving.client",
    "base_url": "pass server_url=... for a running megatalker server",
    "url": "pass server_url=... for a running megatalker server",
    "params": "pass settings=MegatalkerTTSService.Settings(...)",
    "instructions": "pass settings=MegatalkerTTSService.Settings(instruct=...)",
    "speed": "Qwen3-TTS has no speed; with a checkpoint that takes instructions say it in words: "
    "settings=MegatalkerTTSService.Settings(instruct='Speak slowly.')",
}
"""Advice for arguments of other services that mean nothing here."""


def sort_arguments(
    service: type[TTSService], settings: MegatalkerTTSSettings | None, given: Mapping[str, Any]
) -> tuple[MegatalkerTTSSettings | None, dict[str, Any]]:
    """Return ``settings`` with the arguments that stand for its fields, and the arguments for ``TTSService``.

    Args:
        service: whose constructor it is.
        settings: what was given as ``settings``.
        given: all arguments that the constructor does not name.

    Raises:
        TypeError: an argument is neither; the message says what to give instead.
        SettingsError: a field is given twice.
    """
    for name in given:
        if name not in AS_SETTINGS and name not in _named_by(TTSService.__mro__):
            raise TypeError(f"{service.__name__} takes no argument {name!r}: {_hint(name, service)}")
    short = [name for name in given if name in AS_SETTINGS]
    if not short:
        return settings, dict(given)
    settings = MegatalkerTTSSettings() if settings is None else MegatalkerTTSSettings.own(settings)
    for name in short:
        field = AS_SETTINGS[name]
        if is_given(getattr(settings, field)):
            raise SettingsError(f"{field} is given twice, by {name}={given[name]!r} too; leave one of them out")
        setattr(settings, field, given[name])
    return settings, {name: value for name, value in given.items() if name not in AS_SETTINGS}


def _named_by(classes: Iterable[type]) -> set[str]:
    """The arguments that the constructors of these classes call by name."""
    made = [
        inspect.signature(vars(kind)["__init__"]).parameters.values() for kind in classes if "__init__" in vars(kind)
    ]
    return {one.name for parameters in made for one in parameters if one.kind is one.KEYWORD_ONLY} - DECIDED


def _hint(name: str, service: type[TTSService]) -> str:
    if name in INSTEAD:
        return INSTEAD[name]
    if name in MegatalkerTTSSettings.__dataclass_fields__:
        return f"pass settings=MegatalkerTTSService.Settings({name}=...)"
    if name in DECIDED:
        return "the service decides that itself; leave it out"
    close = difflib.get_close_matches(name, _named_by(service.__mro__) | set(AS_SETTINGS), n=1)
    return f"did you mean {close[0]!r}?" if close else "leave it out"
