"""A backend's own settings: the ``[backends.NAME]`` or ``[codecs.NAME]`` table, checked by the backend's model."""

from pydantic import ValidationError

from megatalker.errors import SettingsError
from megatalker.interfaces import CodecBackend, SettingsT, TalkerBackend
from megatalker.settings import Settings


def own_settings(spec: TalkerBackend[SettingsT] | CodecBackend[SettingsT], settings: Settings) -> SettingsT:
    """The settings of ``spec`` itself, an instance of ``spec.settings``.

    Raises:
        SettingsError: names each key that is unknown or has an impossible value, and the known ones.
    """
    table = "backends" if isinstance(spec, TalkerBackend) else "codecs"
    try:
        return spec.settings.model_validate(dict(getattr(settings, table).get(spec.name, {})))
    except ValidationError as error:
        faults = "; ".join(
            f"{table}.{spec.name}.{'.'.join(str(part) for part in item['loc'])} is {item['input']!r}: {item['msg']}"
            for item in error.errors()
        )
        known = ", ".join(spec.settings.model_fields) or "none"
        raise SettingsError(f"settings of {spec.name!r}: {faults}; known settings: {known}") from error
