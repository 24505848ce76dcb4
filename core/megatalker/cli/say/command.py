"""``megatalker say``: its options."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from megatalker.cli.console import say_plainly
from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    LanguageOption,
    LexiconOption,
    NormalizeOption,
    RefAudioOption,
    RefTextOption,
    given,
    on_or_off,
    read_settings,
)
from megatalker.cli.say.formats import Format
from megatalker.cli.say.text_argument import check_text_argument, read_cast
from megatalker.cli.status import Status


def say(
    text: Annotated[str, typer.Argument(help="What to say, or - to speak standard input while it arrives.")],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="File, or - for standard output.", show_default="speech.wav unless played"),
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="pcm: bare 16-bit samples; pcm_mulaw, pcm_alaw: bare G.711.",
            show_default="by the ending of --out, else wav",
        ),
    ] = None,
    sample_rate: Annotated[
        int | None,
        typer.Option(
            help="Samples a second: 8000, 16000, 22050, 24000, 44100 or 48000.", show_default="24000; G.711 8000"
        ),
    ] = None,
    voice: Annotated[
        str | None,
        typer.Option(help="Speaker name, a voice file made with --save-voice, or a mix: robin:0.6+mina:0.4."),
    ] = None,
    language: LanguageOption = None,
    instruct: Annotated[
        str | None, typer.Option(help="Style or voice description, where the checkpoint takes one.")
    ] = None,
    ref_audio: RefAudioOption = None,
    ref_text: RefTextOption = None,
    save_voice: Annotated[Path | None, typer.Option(help="Keep the cloned voice for later use with --voice.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech.")] = None,
    do_sample: Annotated[bool | None, typer.Option("--do-sample/--greedy", help="Code 0: draw, or likeliest.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of code 0.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Of code 0; 0 keeps all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of code 0.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Of code 0.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Frames before speech may end.")] = None,
    predictor_do_sample: Annotated[
        bool | None, typer.Option("--predictor-do-sample/--predictor-greedy", help="Codes 1 to 15.")
    ] = None,
    predictor_temperature: Annotated[float | None, typer.Option(help="Of codes 1 to 15.")] = None,
    predictor_top_k: Annotated[int | None, typer.Option(help="Of codes 1 to 15; 0 keeps all.")] = None,
    predictor_top_p: Annotated[float | None, typer.Option(help="Of codes 1 to 15.")] = None,
    play: Annotated[
        bool | None,
        typer.Option(
            "--play/--no-play",
            help="Through this machine's loudspeaker.",
            show_default="plays if megatalker[play] is installed, unless --out is -",
        ),
    ] = None,
    normalize: NormalizeOption = None,
    lexicon: LexiconOption = None,
    captions: Annotated[
        Path | None, typer.Option(help="File of captions (.srt, .vtt); times are estimates without an aligner.")
    ] = None,
    markup: Annotated[
        Literal["none", "tags", "ssml"] | None, typer.Option(help="What TEXT is written in.", show_default="none")
    ] = None,
    cast: Annotated[
        list[str] | None, typer.Option(help="NAME=VOICE: a voice that TEXT names; may be given several times.")
    ] = None,
    raw_text: Annotated[bool, typer.Option("--raw-text", help="Give the model TEXT as it is, not cleaned.")] = False,
    warmup: Annotated[bool, typer.Option(help="Compile first: slower to start, faster to speak.")] = False,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Speak TEXT: write it while it is generated, and play it where a player is installed.

    Sampling options that are left out are the checkpoint's own. Speech from before an error or Ctrl-C is kept.
    """
    check_text_argument(text)
    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype)
    sampling = given(
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        min_new_tokens=min_new_tokens,
        predictor_do_sample=predictor_do_sample,
        predictor_temperature=predictor_temperature,
        predictor_top_k=predictor_top_k,
        predictor_top_p=predictor_top_p,
    )
    with Status() as status:
        status.stage("importing torch")
        from megatalker.cli.captions import check_captions_path
        from megatalker.cli.say.destination import Destination
        from megatalker.cli.say.speaking import SpeakOptions, VoiceOrder, speak

        if captions is not None:
            check_captions_path(captions)
        order = SpeakOptions(
            text=None if text == "-" else text,
            voice=VoiceOrder(voice, ref_audio, ref_text, save_voice),
            language=language,
            instruct=instruct,
            seed=seed,
            sampling=sampling,
            warmup=warmup,
            clean_text=not raw_text,
            normalize=on_or_off(normalize),
            lexicon=lexicon,
            captions=captions,
            markup=markup,
            cast=read_cast(cast or ()),
        )
        destination = Destination(out, kind=format_, rate=sample_rate, play=play, c2pa=settings.c2pa)
        report = speak(order, settings, destination, status)
    for line in report:
        say_plainly(line)
