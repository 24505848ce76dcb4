"""Requests of clients that were written for another server, in our words.

Null and "" mean absent, text that holds a number or a truth value is taken as that, formats are known by their usual
names, and fields of other servers are translated where they mean the same here. The rest is left out and named. A name
close to one of ours is refused: it is a typing error, and to leave it out would change what is spoken.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from megatalker.errors import InvalidRequestError, explain_validation
from megatalker.prompt.languages import NAMES, name_of

M = TypeVar("M", bound=BaseModel)

TOLD_NAMES = 16
"""Ignored fields that are named; of more, only their number is told."""
TOLD_CHARS = 40
"""Characters of an ignored field's name that are told."""
COMPARED_NAMES = 64
"""Unknown fields that are compared with ours: comparing takes about 0.1 ms each, and a request may hold 90,000."""
MAX_KEYS = 64
"""Keys that an object may have where unknown ones are refused: each is a complaint of its own."""
LONGEST_INTEGER = 400
"""Digits; a longer number in JSON is infinite."""


class FieldError(InvalidRequestError):
    """A field of a request is wrong.

    Args:
        message: what is wrong, what was expected, what to do.
        field: its name.
    """

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(message)
        self.field = field


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def voice_by_id(voice: object) -> object:
    """Return the name of a voice: OpenAI's clients may send it as an object."""
    return voice["id"] if isinstance(voice, dict) and voice.keys() == {"id"} else voice


Integer = Annotated[int, BeforeValidator(_refuse_bool)]
Number = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]


def read_json(data: str | bytes) -> Any:
    """Return what a JSON text holds; bytes may begin with a byte order mark, and be UTF-8, UTF-16 or UTF-32.

    Raises:
        InvalidRequestError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(data.removeprefix("\ufeff") if isinstance(data, str) else data, parse_int=_integer)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequestError(f"this is not JSON: {error.msg} ({where})") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"this is not JSON: byte {error.start} is not {error.encoding}") from error
    except RecursionError:
        raise InvalidRequestError("this is not JSON that can be read: it is nested too deeply") from None


def read_fields(model: type[M], given: Mapping[str, Any], *, strict: bool = False) -> tuple[M, tuple[str, ...]]:
    """Return a message of this kind from fields of a client, and the names of fields that were left out.

    Args:
        model: what to make.
        given: the client's fields.
        strict: take our own fields only, as they are declared.

    Raises:
        FieldError: a field is missing or has a wrong value, or its name is close to one of ours.
    """
    try:
        return _read_fields(model, given, strict=strict)
    except RecursionError:
        raise FieldError("a field is nested too deeply", None) from None


def _read_fields(model: type[M], given: Mapping[str, Any], *, strict: bool) -> tuple[M, tuple[str, ...]]:
    if strict and len(given) > MAX_KEYS:
        raise FieldError(f"the message has {len(given)} keys, expected at most {MAX_KEYS}", None)
    whole = {name: value if name in _TEXTS else _whole(value) for name, value in given.items()}
    fields, ignored = (whole, ()) if strict else _translated(model, whole)
    try:
        return model.model_validate(fields, strict=strict), ignored
    except ValidationError as error:
        faults = error.errors(include_url=False)
        place = ".".join(map(str, faults[0]["loc"])) or None
        raise FieldError(explain_validation(faults, known=list(model.model_fields)), place) from error


def told_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of ignored fields as headers, events and the log can hold them: few, short, printable ASCII."""
    told = [quote(name[:TOLD_CHARS], safe="", errors="surrogatepass")[:TOLD_CHARS] for name in names[:TOLD_NAMES]]
    more = len(names) - len(told)
    return (*told, *([f"and {more} more"] if more else []))


def _translated(model: type[BaseModel], given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    kinds = _kinds(model)
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = given.get(name)
        if not _is_absent(name, value):
            fields[name] = _converted(name, kind, value)
    if str(fields.get("seed")).strip() in _NO_SEED:
        del fields["seed"]
    ignored = []
    for name, value in given.items():
        if name in kinds or _is_absent(name, value):
            continue
        target, meant = _meant(name, value, kinds)
        if meant is None or target in fields:
            ignored.append(name)
        else:
            fields[target] = meant
    _refuse_typing_errors([name for name in ignored if name not in OTHERS][:COMPARED_NAMES], kinds)
    return fields, tuple(ignored)


# ---- our own fields


@dataclass(frozen=True)
class _Kind:
    """The values that a field takes."""

    words: tuple[str, ...] = ()
    """Words of which the field may hold one."""
    strips: bool = True
    """Blanks around text mean nothing."""


_TEXTS = {"text", "input"}
"""Texts to speak, which may hold half a character: the next piece may have the other half."""
_VERBATIM = _TEXTS | {"id"}
"""Texts that stay what they are, also where they are empty."""
_UNSTRIPPED = _VERBATIM | {"instruct", "instructions"}
_NO_SEED = ("-1", "-1.0")
_NULLABLE = ("top_k", "predictor_top_k")
"""Sampling parameters for which null is a value."""


@lru_cache
def _kinds(model: type[BaseModel]) -> Mapping[str, _Kind]:
    return {
        name: _Kind(words=_words(field.annotation), strips=name not in _UNSTRIPPED)
        for name, field in model.model_fields.items()
    }


def _words(annotation: Any) -> tuple[str, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _is_absent(name: str, value: object) -> bool:
    return value is None or (isinstance(value, str) and name not in _VERBATIM and not value.strip())


def _converted(name: str, kind: _Kind, value: object) -> object:
    if name == "sampling" and isinstance(value, Mapping):
        return {key: _number(inner) for key, inner in value.items() if inner is not None or key in _NULLABLE}
    if not isinstance(value, str) or not kind.strips:
        return value
    return known_word(value, kind.words) or value.strip() if kind.words else value.strip()


def _whole(value: object) -> object:
    """Return a value without halves of characters, which can neither be stored nor sent back."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def _number(value: object) -> object:
    """Return the number or truth value that a text holds; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value.lower(), parse_int=_integer)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, int | float) else value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_INTEGER else float(digits)


_FORMATS = {
    "mp3": ("mpeg", "mpeg3", "x-mp3"),
    "opus": ("ogg", "oga", "ogg_opus", "ogg-opus", "ogg; codecs=opus"),
    "aac": ("aacp", "adts"),
    "flac": ("x-flac",),
    "wav": ("wave", "x-wav", "vnd.wave"),
    "pcm": ("pcm16", "pcm_16", "pcm_s16le", "s16le", "s16", "pcm_24000"),
    "s16le": ("pcm16", "pcm_16", "pcm_s16le", "pcm", "s16", "pcm_24000"),
    "f32le": ("pcm_f32le", "float32", "f32"),
    "pcm_mulaw": ("mulaw", "mu-law", "mu_law", "ulaw", "u-law", "pcm_ulaw", "pcmu", "basic", "g711_ulaw", "ulaw_8000"),
    "pcm_alaw": ("alaw", "a-law", "a_law", "pcma", "g711_alaw", "alaw_8000"),
}
"""Further names of formats of audio."""


def known_word(value: str, words: tuple[str, ...]) -> str | None:
    """Return which of these words is meant; formats of audio are known by further names, too."""
    asked = value.strip().lower().lstrip(".").removeprefix("audio/")
    return next((word for word in words if asked == word or asked in _FORMATS.get(word, ())), None)


# ---- fields of other servers


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _language(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    return word if word == "auto" or word in NAMES.values() else name_of(word)


def _kokoro_language(value: object) -> str | None:
    return _KOKORO.get(value.strip().lower()) or _language(value) if isinstance(value, str) else None


def _count(value: object, least: int, more: int) -> int | None:
    """Return ``more`` than a whole number of at least ``least``."""
    number = _number(value)
    return number + more if isinstance(number, int) and not isinstance(number, bool) and number >= least else None


def _frames(value: object) -> int | None:
    """Return the frames of a limit that counts the end of speech, too."""
    return _count(value, 2, -1)


def _new_tokens(value: object) -> int | None:
    """Return the limit that counts the end of speech, too, for a number of frames."""
    return _count(value, 1, 1)


def _rate(value: object) -> int | None:
    return _count(value, 1, 0)


_KOKORO = {
    "a": "english", "b": "english", "e": "spanish", "f": "french", "i": "italian", "j": "japanese", "p": "portuguese",
    "z": "chinese",
}  # fmt: skip
"""Kokoro's letters for languages."""

_MEANINGS: Mapping[str, tuple[Callable[[object], Any], tuple[str, ...]]] = {
    "text": (_text, ("input",)),
    "input": (_text, ("text",)),
    "voice": (_text, ("speaker",)),
    "speaker": (_text, ("voice",)),
    "voice_id": (_text, ("voice", "speaker")),
    "voice_name": (_text, ("voice", "speaker")),
    "lang": (_language, ("language",)),
    "lang_code": (_kokoro_language, ("language",)),
    "language_code": (_language, ("language",)),
    "language_id": (_language, ("language",)),
    "text_lang": (_language, ("language",)),
    "text_language": (_language, ("language",)),
    "instructions": (_text, ("instruct",)),
    "instruction": (_text, ("instructions", "instruct")),
    "format": (_text, ("response_format",)),
    "response_format": (_text, ("format",)),
    "audio_format": (_text, ("response_format", "format")),
    "output_format": (_text, ("response_format", "format")),
    "sampling_rate": (_rate, ("sample_rate",)),
    "inputs": (_text, ("input", "text")),
    "max_new_tokens": (_frames, ("max_frames",)),
    "max_frames": (_new_tokens, ("max_new_tokens",)),
}
"""Fields of other servers that mean the same as one of ours: how to read the value, and ours by preference."""

OTHERS = frozenset(_MEANINGS) | frozenset(
    re.findall(
        r"\w+",
        """
    user model model_id model_name temperature top_p top_k repetition_penalty length_penalty do_sample max_tokens
    max_length n stop stream streaming streaming_mode stream_options stream_format metadata store extra_body
    extra_headers speed speed_factor speed_ratio speaking_rate rate response_format download_format
    return_download_link return_timestamps timestamps normalize normalization_options text_normalization
    apply_text_normalization volume volume_multiplier volume_scale pitch pitch_scale gain emotion style language
    language_boost language_type prompt_lang prompt_language locale sample_rate sampling_rate bitrate
    bit_rate channels voice_type voice_mode voice_preset voice_settings voice_sample voice_file
    speaker_id speaker_name speaker_wav seed ref_audio ref_text ref_audio_path reference_audio reference_text
    reference_id references prompt prompt_text prompt_audio audio_prompt task task_type type id x_vector_only_mode
    non_streaming_mode initial_codec_chunk_frames exaggeration cfg cfg_weight cfg_value cfg_scale chunk_size
    chunk_length split_text split_sentences text_split_method batch_size latency optimize_streaming_latency
    previous_text next_text request_id context_id session_id client_id enable_logging ssml subtitles instruct
    instruct_text layout sampling
    """,
    )
)
"""Names that other servers give fields to: never typing errors, however close to ours."""


def _meant(name: str, value: object, kinds: Mapping[str, _Kind]) -> tuple[str, object]:
    """Return our name and value for a field of another server; the value ``None``: it has no meaning here."""
    read, ours = _MEANINGS.get(name, (_text, ()))
    target = next((own for own in ours if own in kinds), "")
    if not target:
        return "", None
    found = read(value)
    words = kinds[target].words
    if words:
        return target, None if found is None else known_word(found, words)
    return target, found.strip() if isinstance(found, str) and kinds[target].strips else found


def _refuse_typing_errors(names: list[str], ours: Mapping[str, object]) -> None:
    for name in names:
        if len(name) > TOLD_CHARS:
            continue
        close = difflib.get_close_matches(name.lower().replace("-", "_"), ours, n=1, cutoff=_CLOSE)
        if close and abs(len(close[0]) - len(name)) <= _LENGTHS:
            raise FieldError(f"unknown key {name!r}; did you mean {close[0]!r}?", ascii(name)[1:-1])


_CLOSE = 0.74
"""Similarity of a typing error: two letters of four in the wrong order give 0.75."""
_LENGTHS = 2
"""A typing error has about as many letters; a longer name is a name of its own, such as ``voice_engine``."""
