"""Settings: keyword arguments, then ``MEGATALKER_*`` environment variables, then ``megatalker.toml``, then defaults."""

import os
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings import SettingsError as UnreadableEnvironment

from megatalker.errors import SettingsError, explain_validation, suggest

ENV_PREFIX = "MEGATALKER_"
CONFIG_FILE = "megatalker.toml"


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _refuse_bool_and_float(value: object) -> object:
    if isinstance(value, bool | float):
        raise ValueError("expected an integer")
    return value


Integer = Annotated[int, BeforeValidator(_refuse_bool_and_float)]
"""``true`` and ``4.0`` are no integers; the text ``"4"``, as the environment has it, is one."""
Positive = Annotated[Integer, Field(ge=1)]
LONGEST_S = 1e6
"""Of all times that may be asked for, eleven days: every clock and timer counts so far."""
Seconds = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]


class _TomlFile(TomlConfigSettingsSource):
    """Names the file in its errors."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            return tomllib.loads(file_path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:  # its message names line and column
            raise SettingsError(f"settings file {str(file_path)!r} is not TOML: {error}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise SettingsError(f"settings file {str(file_path)!r} is not UTF-8 text (line {line})") from error
        except OSError as error:
            raise SettingsError(f"settings file {str(file_path)!r} cannot be read: {error.strerror}") from error


class KeySettings(BaseModel):
    """A key that opens the server, by its name: ``[server.keys.NAME]``, written by ``megatalker keys add NAME``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
    """Of the key, which is kept nowhere."""
    max_streams: Positive | None = None
    """Utterances that it may have open at a time, spoken or waiting. ``None``: as many as the engine takes."""
    requests_per_minute: Positive | None = None
    """Utterances, voices and tokens that it may ask for in a minute, all of them at once if it likes."""
    manage_voices: bool = False
    """It may add and remove voices for everybody."""


class ServerSettings(BaseModel):
    """What ``megatalker serve`` is started with, besides the engine's own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """``0.0.0.0`` serves the network."""
    port: Annotated[Integer, Field(ge=0, le=65535)] = 8000
    """0 takes a free one, which the log names."""
    api_key: SecretStr | None = None
    """Where set, speech is for those who send it: ``Authorization: Bearer KEY``. It may manage voices."""
    keys: Mapping[str, KeySettings] = Field(default_factory=dict)
    """Further keys, by name, each with limits of its own."""
    token_lifetime_s: Positive = 60
    """Seconds that a token of ``POST /v1/tokens`` opens WebSockets for."""
    token_secret: SecretStr | None = None
    """What tokens are signed with. ``None``: drawn at the start; servers behind one address need the same."""
    max_streams_per_connection: Positive = 32
    """Utterances that one WebSocket may have open at a time."""
    allowed_hosts: tuple[str, ...] = ()
    """``Host`` headers that are answered, without port; ``*.example.com`` takes its subdomains. None: all."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may ask, such as ``https://app.example.com``, besides those of the server itself; ``*``: all."""
    tls_certificate: Path | None = None
    """PEM file; with it and ``tls_key`` the server speaks HTTPS and WSS."""
    tls_key: Path | None = None
    """PEM file with the private key."""
    tls_key_password: SecretStr | None = None
    """Where the private key is encrypted."""
    lazy: bool = False
    """Load the backends at the first request, which waits for it, and not at the start."""
    log_format: Literal["text", "json"] = "text"
    """Lines of the log: ``key=value`` pairs, or one JSON object each."""
    voices_dir: Path | None = None
    """A folder of voices, served by their names: recordings (``megatalker voices add``) and voice files
    (``Voice.save``, ``megatalker say --save-voice``). What changes in it changes in the server."""
    max_upload_bytes: Annotated[Integer, Field(ge=1024)] = 1 << 25
    """Of a request that adds a voice."""
    voice_cache_size: Positive = 64
    """Cloned voices that are kept in memory, those used last."""
    voice_cache_ttl_s: Seconds = 3600.0
    """One that nobody used for so long is forgotten, and read again when somebody does."""
    model: str | None = None
    """The name that ``model`` has in requests and in ``GET /v1/models``; by default the checkpoint's."""
    model_aliases: tuple[str, ...] = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
    """Further names that ``model`` has in requests: those that OpenAI's clients send."""
    voice_aliases: Mapping[str, str] | None = None
    """Further names of voices in OpenAI's requests. ``None``: OpenAI's voices (``alloy``, ``ash``, ...) go round the
    voices known here."""
    max_message_bytes: Annotated[Integer, Field(ge=1024)] = 1 << 20
    """Of a request's body, and of one message of a WebSocket."""
    max_connections: Positive = 1000
    """One more takes the place of a connection that has sent no whole request yet, or is refused."""
    request_timeout_s: Seconds = 30.0
    """A connection has this long to send a whole request."""
    send_timeout_s: Seconds = 30.0
    """A client that accepts nothing for this long is dropped."""
    text_timeout_s: Seconds = 120.0
    """An open utterance for which no text arrives for this long ends with an error."""
    drain_timeout_s: Seconds = 30.0
    """How long utterances may go on after SIGTERM, while new ones are refused; then they end with an error."""
    shutdown_timeout_s: Seconds = 10.0
    """How long clients get to read their last events when the server stops."""


class RaySettings(BaseModel):
    """Replicas of the server on Ray Serve (:mod:`megatalker.serving.ray`), each with an engine of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: Positive = 1
    """With ``max_replicas``, the fewest."""
    max_replicas: Positive | None = None
    """As many as the load asks for, up to this number. ``None``: always ``replicas``."""
    target_load: Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0, le=1)] = 0.75
    """Share of its rows (``max_streams``) that a replica should use; streams that wait count as if they had one."""
    gpus: Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0)] | None = None
    """Of one replica; a fraction lets several share one. ``None``: one where ``device`` is ``cuda``."""
    cpus: Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0)] = 1.0
    """Processor cores that Ray sets aside for a replica."""


class Settings(BaseSettings):
    """Everything an engine is opened with. Unknown keys are refused by name, wherever they come from.

    Nested keys: ``backends.compiled.max_streams`` in Python and TOML, ``MEGATALKER_BACKENDS__COMPILED__MAX_STREAMS``
    in the
    environment.

    Raises:
        SettingsError: through :meth:`read`; names each offending key, what was found and what was expected.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        toml_file=CONFIG_FILE,
        extra="forbid",
        frozen=True,
    )

    checkpoint: str = "demo"
    """``demo``, a folder in the official layout, or a hub id such as ``Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice``;
    ``modelscope:`` before it takes it from there."""
    backend: str = "auto"
    """Talker backend; asking for one by name and not getting it is an error."""
    codec: str = "auto"
    """Codec backend; as ``backend``."""
    fallbacks: tuple[str, ...] | None = None
    """Talker backends that continue the streams of a faulty one, in order. ``None``: every other available one, by
    rank."""
    codec_fallbacks: tuple[str, ...] | None = None
    """As ``fallbacks``, for codecs."""
    device: str = "auto"
    """``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps`` (Apple's GPUs)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Talker weights and arithmetic. ``auto``: bfloat16 on CUDA, float32 elsewhere."""
    voice: str | None = None
    """Default speaker of CustomVoice checkpoints; ``None``: the checkpoint's first."""
    language: str = "auto"
    """Default language of what is said: one of the checkpoint's, or ``auto``."""
    max_streams: Positive = 8
    """Streams decoding at the same time; a talker backend holds as many, unless its own settings say otherwise."""
    max_waiting: Annotated[Integer, Field(ge=0)] = 64
    """Requests that may wait for a free stream; one more is refused with ``CapacityError``. Of other owners' only those
    count whose turn comes before, and none without work: they wait for text, or for their consumer
    (:mod:`megatalker.engine.admission`)."""
    max_wait_s: Seconds | None = None
    """A request that waits longer for a free stream ends with ``CapacityError``, and is refused at once where that is
    foreseen. ``None``: it waits as long as it takes. ``megatalker serve`` sets 30 where nothing else is said."""
    max_open: Positive = 1024
    """Streams open at the same time, with those that have no work; one more is refused with ``CapacityError``."""
    max_streams_per_owner: Positive | None = None
    """As ``max_open``, of those that ``Engine.speak`` was given the same ``owner`` for. ``None``: no limit."""
    max_text_chars: Positive = 20_000
    """Of one utterance; a longer text is refused."""
    max_reference_s: Seconds = 30.0
    """Of the recording that a cloned voice brings along; each frame of it is a row of every prompt."""
    max_segment_chars: Positive = 400
    """Longer text is split into sentences of at most about this length, spoken as one continuous stream."""
    max_frames: Positive = 65_536
    """Frames of one utterance. Reaching it ends the stream with that reason."""
    max_segment_frames: Positive | None = None
    """Frames of one segment. Reaching it ends the stream with the reason ``max_frames``. ``None``: as the checkpoint
    says, one less than the ``max_new_tokens`` of its ``generation_config.json``, of which the last is the end."""
    max_ahead_s: Seconds | None = None
    """A stream further ahead of playback than this waits. ``None``: speak as fast as the device can."""
    max_untaken_s: Seconds | None = None
    """A stream whose consumer has this much audio still to take waits until it takes some. ``None``: make it all.
    ``megatalker serve`` sets 20 where nothing else is said, so that slow clients cost no memory."""
    max_chunk_frames: Positive = 8
    """The first chunk is 1 frame; later ones double up to this many while playback is safely ahead. A chunk may
    hold a frame or two more where others were about to run dry and frames came first."""
    runaway_guard: bool = True
    """End a stream that goes on in silence or in a loop long after its text (:mod:`megatalker.engine.runaway`)."""
    threads: Positive | Literal["auto"] = "auto"
    """Processor threads of one operation of torch in the engine's thread. ``auto``: one for small checkpoints, and
    beside a CUDA device, where operations are too short to share, otherwise as many as torch takes (one a core)."""
    warmup: Literal["all", "first"] | None = None
    """What warm-up waits for: ``all`` that the backends prepare, or what the ``first`` stream needs, while they prepare
    the rest beside their work, with the same results (log, ``GET /ready``). ``None``: ``all``. The server, the voice
    agent and the adapters set ``first`` where nothing else is said."""
    step_deadline_s: Seconds = 20.0
    """A backend call that takes longer marks the backend faulty."""
    backends: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Each talker backend's own settings, checked by the backend's own model."""
    codecs: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Each codec's own settings."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    """``megatalker serve``; see :class:`ServerSettings`."""
    ray: RaySettings = Field(default_factory=RaySettings)
    """Replicas on Ray Serve; see :class:`RaySettings`."""
    agent: Mapping[str, Any] = Field(default_factory=dict)
    """The voice agent's own settings, checked by the agent; the engine ignores them."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source here
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source here
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments win over the environment, the environment over the file."""
        return init_settings, env_settings, _TomlFile(settings_cls)

    @classmethod
    def read(cls, config_file: Path | None = None, **overrides: Any) -> "Settings":
        """Read all sources; ``overrides`` (such as command-line options) win.

        Args:
            config_file: another file than ``megatalker.toml`` of the working directory; it must exist.
            **overrides: fields by name; ``None`` values are kept as values.

        Raises:
            SettingsError: see the class.
        """
        if config_file is not None and not config_file.is_file():
            raise SettingsError(f"settings file {str(config_file)!r} does not exist")
        for name in overrides:
            if name not in cls.model_fields and name.lower() in cls.model_fields:  # pydantic would take it
                raise SettingsError(f"unknown setting {name!r}{suggest(name, known_keys(cls))}")
        reader: type[Settings] = cls
        if config_file is not None:
            reader = type(cls.__name__, (cls,), {"model_config": SettingsConfigDict(toml_file=config_file)})
        _refuse_unknown_environment(cls)
        try:
            return reader(**overrides)
        except ValidationError as error:
            faults = explain_validation(error.errors(), noun="setting", known=known_keys(cls))
            raise SettingsError(faults) from error
        except UnreadableEnvironment as error:
            raise SettingsError(f"{error}; expected JSON") from error


def _refuse_unknown_environment(settings: type[Settings]) -> None:
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            key = name[len(ENV_PREFIX) :].lower().split("__")[0]
            if key not in settings.model_fields:
                raise SettingsError(f"unknown setting {name} in the environment{suggest(key, settings.model_fields)}")


def known_keys(model: type[BaseModel], table: str = "") -> list[str]:
    """Every key of ``model`` and of the tables within it, with ``table`` in front: ``server.port``."""
    keys = []
    for name, field in model.model_fields.items():
        key, nested = f"{table}.{name}" if table else name, field.annotation
        keys.append(key)
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            keys += known_keys(nested, key)
    return keys
