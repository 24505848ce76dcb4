"""Settings: keyword arguments, then ``MEGATALKER_*`` environment variables, then ``megatalker.toml``, then defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from megatalker.errors import SettingsError, suggest
from megatalker.settings.sources import TomlFile, environment, explain
from megatalker.settings.values import (
    LONGEST_S,
    Amount,
    Bytes,
    Deadline,
    Integer,
    Key,
    KeyHash,
    Markup,
    Normalize,
    Positive,
    Proxy,
    Seconds,
    Secret,
    Share,
    SigningSecret,
    SomePath,
    check_file,
    check_keys,
    check_prefix,
    check_wyoming,
)

__all__ = [
    "CONFIG_FILE",
    "LONGEST_S",
    "C2paSettings",
    "Integer",
    "KeySettings",
    "Markup",
    "Normalize",
    "Positive",
    "RaySettings",
    "Seconds",
    "ServerSettings",
    "Settings",
    "ShortSpeech",
    "key_names",
    "known_keys",
]

ShortSpeech = Literal["repeat", "report", "believe"]
CONFIG_FILE = "megatalker.toml"


class KeySettings(BaseModel):
    """A key that opens the server, by its name: ``[server.keys.NAME]``, written by ``megatalker keys add NAME``."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    hash: KeyHash
    """Hash of the key; the key itself is kept nowhere."""
    max_streams: Positive | None = None
    """Utterances that it may have open at a time, spoken or waiting. ``None``: as many as the engine takes."""
    requests_per_minute: Positive | None = None
    """Utterances, voices and tokens that it may ask for in a minute, all of them at once if it likes."""
    manage_voices: bool = False
    """It may add and remove voices for everybody."""


class ServerSettings(BaseModel):
    """Settings of ``megatalker serve``, besides the engine's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = "127.0.0.1"
    """``0.0.0.0`` serves the network."""
    port: Annotated[Integer, Field(ge=0, le=65535)] = 8000
    """0 takes a free one, which the log names."""
    wyoming: Annotated[str, AfterValidator(check_wyoming)] | None = None
    """An address such as ``tcp://0.0.0.0:10200`` at which Wyoming's clients are served, too, Home Assistant first. The
    protocol has no keys: everyone who reaches the address may speak. Needs the extra ``wyoming``."""
    announce: bool = False
    """Tell the network of that address (zeroconf), so that Home Assistant offers the server by itself."""
    api_key: Key | None = None
    """Key for ``Authorization: Bearer KEY``; it may manage voices. ``None``: requests need no key."""
    keys: Mapping[str, KeySettings] = Field(default_factory=dict)
    """Further keys, by name, each with limits of its own."""
    token_lifetime_s: Positive = 60
    """Seconds that a token of ``POST /v1/tokens`` opens WebSockets for."""
    token_secret: SigningSecret | None = None
    """Secret of 16 or more characters that signs tokens; servers behind one address share it. ``None``: random."""
    max_streams_per_connection: Positive = 32
    """Utterances that one WebSocket may have open at a time."""
    allowed_hosts: tuple[str, ...] = ()
    """``Host`` headers that are answered, without port; ``*.example.com`` takes its subdomains. None: all; but a server
    on a loopback address without keys answers for ``localhost``, ``127.0.0.1``, ``::1`` and its ``host`` alone, so that
    no web page reaches it under a name of its own."""
    trusted_proxies: tuple[Proxy, ...] = ()
    """Addresses and networks of proxies whose ``X-Forwarded-For``, ``-Proto``, ``-Host`` and ``-Prefix`` are believed;
    ``*``: all, where nobody else reaches the server. None: every caller behind a proxy has the proxy's address."""
    root_path: Annotated[str, AfterValidator(check_prefix)] = ""
    """The prefix under which a reverse proxy offers the server, such as ``/speech``, whether it cuts it off or not."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may ask, such as ``https://app.example.com``, besides those of the server itself; ``*``: all."""
    tls_certificate: SomePath | None = None
    """PEM file; with it and ``tls_key`` the server speaks HTTPS and WSS."""
    tls_key: SomePath | None = None
    """PEM file with the private key."""
    tls_key_password: Secret | None = None
    """Password of an encrypted private key."""
    devices: Literal["auto"] | tuple[str, ...] = "auto"
    """The devices that speak, such as ``cuda:0,cuda:2``, each with an engine in a process of its own. ``auto``: every
    GPU, or the one ``device`` that the engine's setting names."""
    reload: Literal["beside", "in_turn"] = "beside"
    """When ``megatalker reload`` starts new engines: while the old ones serve, which takes the memory of both; or when
    those have served out, and new connections wait meanwhile."""
    front_ends: Literal["auto"] | Annotated[Integer, Field(ge=1, le=256)] = "auto"
    """Processes that take connections, all on the one address. ``auto``: one; beside GPUs one for four cores, but no
    more than four a GPU."""
    lazy: bool = False
    """Load the backends at the first request, which waits for it, and not at the start."""
    log_format: Literal["text", "json"] = "text"
    """Lines of the log: ``key=value`` pairs, or one JSON object each."""
    voices_dir: SomePath | None = None
    """A folder of voices, served by their names: recordings (``megatalker voices add``) and voice files
    (``Voice.save``, ``megatalker say --save-voice``). What changes in it changes in the server."""
    max_upload_bytes: Bytes = 1 << 25
    """Largest body of a request that adds a voice."""
    voice_cache_size: Annotated[Integer, Field(ge=1, le=100_000)] = 64
    """Cloned voices that are kept in memory, those used last."""
    voice_cache_ttl_s: Seconds = 3600.0
    """Seconds after which an unused voice leaves the cache; its next use reads it again."""
    model: str | None = None
    """The name that ``model`` has in requests and in ``GET /v1/models``; by default the checkpoint's."""
    model_aliases: tuple[str, ...] = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
    """Further names that ``model`` has in requests: the names that OpenAI's clients send."""
    voice_aliases: Mapping[str, str] | None = None
    """Further names of voices in OpenAI's requests. ``None``: OpenAI's voices (``alloy``, ``ash``, ...) go round the
    voices known here."""
    mark_synthetic: bool = True
    """Files of speech over HTTP say in their metadata that it is synthetic, and responses in a header. The samples are
    the same either way."""
    get_speech: bool = False
    """Also speak for ``GET /v1/audio/speech?input=...``, for media players. Every web page may then let this server
    speak where it needs no key."""
    strict: bool = False
    """Refuse fields of requests that are unknown, other types than documented, and other models. Otherwise what clients
    of other servers send is understood where it can be, and left out and named where it cannot."""
    max_message_bytes: Bytes = 1 << 20
    """Largest body of other requests, and largest message of a WebSocket."""
    max_connections: Positive = 1000
    """One more takes the place of a connection that has sent no whole request yet, or of one of the owner (key or
    address) that has most; or it is refused. A front end may have its share of them, and what others leave."""
    request_timeout_s: Seconds = 30.0
    """A connection has this long to send a whole request."""
    send_timeout_s: Seconds = 30.0
    """A client that does not read what it is sent within this time is dropped."""
    text_timeout_s: Seconds = 120.0
    """An open utterance for which no text arrives for this long ends with an error."""
    engine_wait_s: Seconds = 120.0
    """Seconds that an utterance waits for a new engine process where the only one has died."""
    drain_timeout_s: Seconds = 30.0
    """Seconds that utterances may go on after SIGTERM, while new ones are refused; then they end with an error."""
    shutdown_timeout_s: Seconds = 10.0
    """Seconds that clients get to read their last events when the server stops."""


class RaySettings(BaseModel):
    """Replicas of the server on Ray Serve (:mod:`megatalker.serving.ray`), each with an engine of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: Positive = 1
    """Number of replicas; with ``max_replicas``, the fewest."""
    max_replicas: Positive | None = None
    """Most replicas: their number follows the load up to it. ``None``: always ``replicas``."""
    target_load: Share = 0.75
    """Share of its rows (``max_streams``) that a replica should use; streams that wait count as if they had one."""
    gpus: Amount | None = None
    """GPUs of one replica; a fraction lets several share one. ``None``: one where ``device`` is ``cuda``."""
    cpus: Amount = 1.0
    """Processor cores that Ray sets aside for a replica."""


class C2paSettings(BaseModel):
    """The key with which whole files of speech are signed (:mod:`megatalker.serving.provenance`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificates: SomePath | None = None
    """PEM file with the certificate of the key and those that vouch for it, in this order."""
    private_key: SomePath | None = None
    """PEM file with the private key, without a password."""
    algorithm: Literal["es256", "es384", "es512", "ps256", "ps384", "ps512", "ed25519"] = "es256"
    """Signature that the key makes."""


class Settings(BaseSettings):
    """Everything an engine is opened with. Unknown keys of any source are refused by name.

    Nested keys: ``backends.compiled.max_streams`` in Python and TOML, ``MEGATALKER_BACKENDS__COMPILED__MAX_STREAMS``
    in the environment. Lists and tables in the environment are JSON, or values with commas between them
    (:mod:`megatalker.settings.sources`).

    Raises:
        SettingsError: through :meth:`read`; names each offending key, what was found and what was expected.
    """

    model_config = SettingsConfigDict(
        toml_file=CONFIG_FILE,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
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
    """Codecs that take over after a fault; like ``fallbacks``."""
    device: str = "auto"
    """``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps`` (Apple's GPUs)."""
    engine_process: bool = False
    """Adapters to agent frameworks run the engine in a process of its own, so that neither waits for the other's
    Python. ``megatalker serve`` always does; ``Engine.open`` never does."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Talker weights and arithmetic. ``auto``: bfloat16 on CUDA, float32 elsewhere."""
    voice: str | None = None
    """Default speaker of CustomVoice checkpoints; ``None``: the checkpoint's first."""
    language: str = "auto"
    """Default language of the text: one of the checkpoint's by name or code (``en``, ``en-US``), or ``auto``."""
    normalize: Normalize = "off"
    """``on``: numbers, dates, amounts, units, addresses and abbreviations are written out in words
    (``megatalker[text]``); a request may say otherwise. ``off``: the model reads them as they are."""
    markup: Markup = "none"
    """``tags`` or ``ssml``: texts hold pauses, marks, voices and spoken forms, in short tags such as ``[pause:400ms]``
    or in SSML; a request may say otherwise. ``none``: all of it is text."""
    lexicon: SomePath | None = None
    """A file of words and respellings (``megatalker lexicon check``); what changes in it holds for the next request."""
    watermark: str = "none"
    """A watermark in the samples of all speech, such as ``perth``, by the name of its plug-in (``megatalker detect``
    finds it). ``none``: the samples are as the codec made them."""
    aligner: str = "estimate"
    """Finds the times of words in the speech, by the name of its plug-in, such as ``pocketsphinx``. ``estimate``: words
    are laid along the audio by their length."""
    max_streams: Annotated[Integer, Field(ge=1, le=4096)] = 8
    """Most streams decoding at the same time; a talker backend holds as many, unless its own settings say otherwise.
    Where the machine is too slow for as many, fewer run and the others wait (``sustainable`` in ``engine.metrics()``).
    """
    max_waiting: Annotated[Integer, Field(ge=0)] = 64
    """Requests that may wait for a free stream; one more is refused with ``CapacityError``. Requests without work,
    which wait for text or for their consumer, do not count, nor do other owners' requests that are admitted later
    (:mod:`megatalker.engine.admission`)."""
    max_wait_s: Seconds | None = None
    """A request that waits longer for a free stream ends with ``CapacityError``, and is refused at once where that is
    foreseen. ``None``: it waits without limit. ``megatalker serve`` sets 30 unless the setting says otherwise."""
    max_open: Positive = 1024
    """Streams open at the same time, with or without work; one more is refused with ``CapacityError``, or ends
    one of an owner that has at least two more."""
    max_streams_per_owner: Positive | None = None
    """Most open streams of one ``owner``, as given to ``Engine.speak``. ``None``: no limit."""
    max_text_chars: Positive = 20_000
    """Most characters of one utterance; a longer text is refused."""
    max_reference_s: Seconds = 30.0
    """Longest recording of a cloned voice; each of its frames is a row of every prompt."""
    max_segment_chars: Positive = 400
    """Longer text is split into sentences of at most about this length, spoken as one continuous stream."""
    max_frames: Positive = 65_536
    """Frames of one utterance. Reaching it ends the stream with that reason."""
    max_segment_frames: Positive | None = None
    """Frames of one segment. Reaching it ends that segment; the stream goes on with the next one and ends with the
    reason ``incomplete``. ``None``: as the checkpoint says, one less than the ``max_new_tokens`` of its
    ``generation_config.json``, of which the last is the end."""
    max_ahead_s: Seconds | None = None
    """A stream further ahead of playback than this waits. ``None``: speak as fast as the device can."""
    max_untaken_s: Seconds | None = None
    """A stream whose consumer has this much audio still to take waits until it takes some. ``None``: make it all.
    ``megatalker serve`` sets 20 where nothing else is said, so that slow clients cost no memory."""
    max_chunk_frames: Annotated[Integer, Field(ge=1, le=65_536)] = 8
    """The first chunk is 1 frame; later ones double up to this many while playback is safely ahead. A chunk may
    hold a frame or two more where others were about to run dry and frames came first."""
    runaway_guard: bool = True
    """End a segment that goes on in silence or in a loop long after its text (:mod:`megatalker.engine.runaway`). The
    stream goes on with the next one and ends with the reason ``runaway``."""
    short_speech: ShortSpeech = "repeat"
    """A segment whose speech is too short for its text: ``repeat`` speaks it once more with another seed, and reports
    what is left out if that is no better; ``report`` reports at once; ``believe`` does neither, for checkpoints whose
    weights are random and for comparisons with the official package."""
    threads: Annotated[Integer, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Processor threads of one operation of torch in the engine's thread. ``auto``: one for small checkpoints and with
    a CUDA device, where operations are too short to share, otherwise as many as torch takes (one a core).
    """
    warmup: Literal["all", "first"] | None = None
    """Extent of warm-up: ``all`` that the backends prepare, or what the ``first`` stream needs while they prepare the
    rest during their work, with the same results (log, ``GET /ready``). ``None``: ``all``. The server, the voice agent
    and the adapters set ``first`` unless the setting says otherwise.
    """
    step_deadline_s: Deadline = 20.0
    """A backend call that takes longer marks the backend faulty."""
    backends: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Each talker backend's own settings, checked by the backend's own model."""
    codecs: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Each codec's own settings."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    """``megatalker serve``; see :class:`ServerSettings`."""
    ray: RaySettings = Field(default_factory=RaySettings)
    """Replicas on Ray Serve; see :class:`RaySettings`."""
    c2pa: C2paSettings = Field(default_factory=C2paSettings)
    """Signed manifests in files; see :class:`C2paSettings`."""
    agent: Mapping[str, Any] = Field(default_factory=dict)
    """The voice agent's own settings, checked by the agent; the engine ignores them."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - our own knows lists and service links
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source here
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source here
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments win over the environment, the environment over the file."""
        return init_settings, InitSettingsSource(settings_cls, environment(settings_cls)), TomlFile(settings_cls)

    @classmethod
    def read(cls, config_file: Path | None = None, **overrides: Any) -> "Settings":
        """Read all sources; ``overrides`` (such as command-line options) win.

        Args:
            config_file: another file than ``megatalker.toml`` of the working directory; it must exist.
            **overrides: fields by name; ``None`` values are kept as values.

        Raises:
            SettingsError: see the class.
        """
        check_file(config_file or Path(CONFIG_FILE), must_exist=config_file is not None)
        for name in overrides:
            if name not in cls.model_fields and name.lower() in cls.model_fields:  # pydantic would take it
                raise SettingsError(f"unknown setting {name!r}{suggest(name, known_keys(cls))}")
        reader: type[Settings] = cls
        if config_file is not None:
            reader = _reader(cls, config_file)
        try:
            settings = reader(**overrides)
        except ValidationError as error:
            raise SettingsError(explain(error, cls, overrides, known=known_keys(cls))) from error
        check_keys(settings.server.keys)
        return cls.model_construct(settings.model_fields_set, **dict(settings))  # not of the reader's class

    @classmethod
    def given(cls, settings: "Settings | None", overrides: dict[str, Any]) -> "Settings":
        """Return these settings, by default those of all sources, with ``overrides`` on top; raises as :meth:`read`."""
        if settings is None:
            return cls.read(**overrides)
        return cls.read(**(settings.model_dump() | overrides)) if overrides else settings


def key_names(file: Path) -> set[str]:
    """Return the names of the keys in ``[server.keys]`` of this file and of the environment, without checking other
    settings.

    Raises:
        SettingsError: the names cannot be read.
    """
    names: set[str] = set()
    for values in (environment(Settings), TomlFile(_reader(Settings, file))()):
        server = values.get("server", {})
        keys = server.get("keys", {}) if isinstance(server, Mapping) else None
        if not isinstance(keys, Mapping):
            raise SettingsError(f"[server.keys] of settings file {str(file)!r} is no table")
        names |= set(keys)
    return names


def _reader(settings: type[Settings], file: Path) -> type[Settings]:
    """The same class, for another file."""
    return type(settings.__name__, (settings,), {"model_config": SettingsConfigDict(toml_file=file)})


def known_keys(model: type[BaseModel], table: str = "") -> list[str]:
    """Every key of ``model`` and of the tables within it, with ``table`` in front: ``server.port``."""
    keys = []
    for name, field in model.model_fields.items():
        key, nested = f"{table}.{name}" if table else name, field.annotation
        keys.append(key)
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            keys += known_keys(nested, key)
    return keys
