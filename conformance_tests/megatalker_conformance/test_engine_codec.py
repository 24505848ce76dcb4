"""A codec inside the engine, where streams share its calls and chunks grow."""

import torch

from megatalker.plugins.checked import CheckedCodec
from megatalker.sampling import SamplingParams
from megatalker_conformance.cases import SENTENCES
from megatalker_conformance.codes import OfficialCodec
from megatalker_conformance.engine_harness import EngineHarness
from megatalker_conformance.measure import Measure
from megatalker_conformance.recording import Log


def test_each_stream_sounds_as_its_codes_in_one_full_forward(
    codec_engine_harness: EngineHarness, codec: CheckedCodec, official_codec: OfficialCodec, measure: Measure
) -> None:
    log, sampling = Log(), SamplingParams(seed=3)
    with codec_engine_harness.engine(log) as engine:
        streams = [codec_engine_harness.begin(engine, text, sampling, "interleaved") for text in SENTENCES[:3]]
        speeches = [codec_engine_harness.listen(stream, log) for stream in streams]
    for received in speeches:
        expected = official_codec.decode(torch.tensor(received.codes))
        difference = float((torch.from_numpy(received.pcm) - expected).abs().max())
        measure(f"largest difference of {len(expected)} samples", difference, official_codec.limit(codec.capabilities))
