"""A backend's own settings: the ``[backends.NAME]`` or ``[codecs.NAME]`` table, checked by the backend's model."""

from collections.abc import Collection
from typing import Literal

from pydantic import ValidationError

from megatalker.errors import SettingsError, suggest
from megatalker.interfaces import CodecBackend, SettingsT, TalkerBackend
from megatalker.settings import Settings
from megatalker.settings.sources import decode_table, explain


def own_settings(spec: TalkerBackend[SettingsT] | CodecBackend[SettingsT], settings: Settings) -> SettingsT:
    """The settings of ``spec`` itself, an instance of ``spec.settings``.

    Raises:
        SettingsError: names each key that is unknown or has an impossible value, and the known ones.
    """
    table = "backends" if isinstance(spec, TalkerBackend) else "codecs"
    try:
        return spec.settings.model_validate(decode_table(spec.settings, getattr(settings, table).get(spec.name, {})))
    except ValidationError as error:
        own = f"{table}.{spec.name}"
        known = [f"{own}.{key}" for key in spec.settings.model_fields]
        raise SettingsError(explain(error, Settings, {}, table=own, known=known)) from error


def refuse_unknown_tables(table: Literal["backends", "codecs"], settings: Settings, names: Collection[str]) -> None:
    """Raise ``SettingsError`` if ``table`` of ``settings`` holds settings for a backend that is none of ``names``."""
    known = [f"{table}.{name}" for name in names]
    for name in getattr(settings, table):
        if name not in names:
            raise SettingsError(f"unknown setting '{table}.{name}'{suggest(f'{table}.{name}', known)}")
