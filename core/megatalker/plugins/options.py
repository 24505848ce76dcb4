"""A backend's own settings: the ``[backends.NAME]`` or ``[codecs.NAME]`` table, checked by the backend's model."""

from collections.abc import Collection
from typing import Literal

from pydantic import ValidationError

from megatalker.errors import SettingsError, explain_validation, suggest
from megatalker.interfaces import BackendSettings, CodecBackend, TalkerBackend
from megatalker.settings import Settings


def own_settings(spec: TalkerBackend | CodecBackend, settings: Settings) -> BackendSettings:
    """The settings of ``spec`` itself, an instance of ``spec.settings``.

    Raises:
        SettingsError: names each key that is unknown or has an impossible value, and the known ones.
    """
    table = "backends" if isinstance(spec, TalkerBackend) else "codecs"
    try:
        return spec.settings.model_validate(dict(getattr(settings, table).get(spec.name, {})))
    except ValidationError as error:
        own = f"{table}.{spec.name}"
        known = [f"{own}.{key}" for key in spec.settings.model_fields]
        raise SettingsError(explain_validation(error.errors(), noun="setting", table=own, known=known)) from error


def refuse_unknown_tables(table: Literal["backends", "codecs"], settings: Settings, names: Collection[str]) -> None:
    """Raise ``SettingsError`` if ``table`` of ``settings`` holds settings for a backend that is none of ``names``."""
    known = [f"{table}.{name}" for name in names]
    for name in getattr(settings, table):
        if name not in names:
            raise SettingsError(f"unknown setting '{table}.{name}'{suggest(f'{table}.{name}', known)}")
