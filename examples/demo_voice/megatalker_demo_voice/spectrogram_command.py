"""``spectrogram``: draws a WAV file: the waveform, and which frequencies are loud when."""

import argparse
from pathlib import Path

import soundfile

_WINDOW, _STEP = 1024, 256
_QUIETEST_DB = -100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wav", type=Path)
    parser.add_argument("picture", type=Path, help="a .png file")
    parser.add_argument("--title", default="")


def run(options: argparse.Namespace) -> None:
    """See the module."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    pcm, rate = soundfile.read(options.wav, dtype="float32")
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(10, 4.5), height_ratios=(1, 3), layout="constrained"
    )
    above.plot([index / rate for index in range(len(pcm))], pcm, linewidth=0.4)
    above.set(ylim=(-1, 1), title=options.title)
    below.specgram(pcm + 1e-6, NFFT=_WINDOW, noverlap=_WINDOW - _STEP, Fs=rate, vmin=_QUIETEST_DB, cmap="magma")
    below.set(xlabel="seconds", ylabel="Hz", ylim=(0, 8000))
    figure.savefig(options.picture, dpi=100)
    plt.close(figure)
