"""A codec inside the engine, where streams share its calls and chunks grow."""

import torch

from megatalker.sampling import SamplingParams
from megatalker_conformance.codes import EXACT, OfficialCodec
from megatalker_conformance.measure import Measure
from megatalker_conformance.recording import Log
from megatalker_conformance.studio import Studio
from megatalker_conformance.utterances import SENTENCES


def test_each_stream_sounds_as_its_codes_in_one_full_forward(
    codec_studio: Studio, official_codec: OfficialCodec, measure: Measure
) -> None:
    log, sampling = Log(), SamplingParams(seed=3)
    with codec_studio.engine(log) as engine:
        streams = [codec_studio.begin(engine, text, sampling, "interleaved") for text in SENTENCES[:3]]
        speeches = [codec_studio.listen(stream, log) for stream in streams]
    for heard in speeches:
        expected = official_codec.decode(torch.tensor(heard.codes))
        difference = float((torch.from_numpy(heard.pcm) - expected).abs().max())
        measure(f"largest difference of {len(expected)} samples", difference, EXACT)
