import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from demo_voice_helpers import SMALL
from megatalker.checkpoint.official import load_qwen_tts
from megatalker_demo_voice.codec_data import CodecData
from megatalker_demo_voice.codec_export import export_codec, load_codec, round_to_stored
from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.codec_training import CodecPlan, CodecTrainer, perplexities
from megatalker_demo_voice.packing import pack, unpacked
from megatalker_demo_voice.pitch import pitch_kept
from megatalker_demo_voice.quantiser import ResidualQuantiser
from megatalker_demo_voice.recipe import FALLING
from megatalker_demo_voice.spectral import SpectralLoss
from megatalker_demo_voice.speech import FRAME

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def wave() -> torch.Tensor:
    time = torch.arange(70 * FRAME) / 24_000
    return torch.stack([0.2 * torch.sin(2 * torch.pi * pitch * time * (1 + 0.2 * time)) for pitch in (110, 180)])


@pytest.fixture(scope="module")
def codec(wave: torch.Tensor) -> TrainableCodec:
    torch.manual_seed(0)
    codec = TrainableCodec(SMALL, FALLING).place(CPU)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for quantiser, latents in zip((codec.first, codec.rest), codec.latents(wave), strict=True):
            quantiser.fit(latents.flatten(0, 1), generator)
    round_to_stored(codec)
    return codec


@pytest.fixture(scope="module")
def folder(codec: TrainableCodec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("codec") / "speech_tokenizer"
    export_codec(codec, SMALL, folder)
    return folder


def test_quantisers_approach_what_they_follow() -> None:
    torch.manual_seed(0)
    centres = torch.randn(16, 8)
    quantiser = ResidualQuantiser((16, 4), 8)
    quantiser.fit(centres[torch.randint(16, (400,))] + 0.01 * torch.randn(400, 8), torch.Generator().manual_seed(0))
    moved = centres + 0.5
    for _ in range(300):
        codes, sums = quantiser(moved[torch.randint(16, (256,))] + 0.01 * torch.randn(256, 8), follow=True)
    wanted = moved[torch.randint(16, (256,))]
    _, sums = quantiser(wanted, follow=False)
    assert float((sums[-1] - wanted).norm(dim=1).median()) < 0.1
    assert float((sums[-1] - wanted).norm()) <= float((sums[0] - wanted).norm())
    assert perplexities(codes)[0] > 12


def test_entries_that_nothing_is_near_move_to_the_data() -> None:
    quantiser = ResidualQuantiser((8,), 4)
    torch.manual_seed(0)
    for _ in range(200):
        codes, _ = quantiser(100 + torch.randn(512, 4), follow=True)
    assert perplexities(codes)[0] > 6


def test_signals_pass_at_a_learnable_size(wave: torch.Tensor) -> None:
    codec = TrainableCodec(SMALL, FALLING)
    with torch.no_grad():
        first, rest = codec.latents(wave)
        out = codec.wave(first, rest)
    assert 0.1 < float(first.std()) < 10
    assert 0.1 < float(rest.std()) < 10
    assert 0.005 < float(out.std()) < 1


@pytest.mark.slow
def test_gradients_reach_every_weight_that_inference_uses(codec: TrainableCodec, wave: torch.Tensor) -> None:
    codec = copy.deepcopy(codec)
    coded = codec.quantised(wave, follow=True, dropout=0.4)
    (SpectralLoss()(coded.wave, wave) + coded.commitment).backward()
    silent = {
        name
        for name, parameter in codec.official.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    }
    unused = ("codebook", "encoder.quantizer.semantic_residual_vector_quantizer.output_proj",
              "encoder.quantizer.acoustic_residual_vector_quantizer.output_proj", "input_proj.weight")  # fmt: skip
    assert {name for name in silent if not any(part in name for part in unused)} == set()


def test_latents_are_called_back_to_unit_size_though_the_codebooks_follow_them(
    codec: TrainableCodec, wave: torch.Tensor
) -> None:
    tiny = copy.deepcopy(codec)
    quantizer, generator = tiny.official.encoder.quantizer, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
            part.input_proj.weight.mul_(0.02)
        for quantiser, latents in zip((tiny.first, tiny.rest), tiny.latents(wave), strict=True):
            quantiser.fit(latents.flatten(0, 1), generator)
        assert float(tiny.quantised(wave, follow=False, dropout=0.0).commitment) > 1


def test_the_official_package_reads_the_export_and_agrees(
    codec: TrainableCodec, folder: Path, wave: torch.Tensor
) -> None:
    official = load_qwen_tts().Qwen3TTSTokenizer.from_pretrained(str(folder), dtype=torch.float32).model.eval()
    stored = set(load_file(folder / "model.safetensors"))
    assert set(official.state_dict()) == stored
    with torch.inference_mode():
        theirs = official.encoder.encode(wave.unsqueeze(1), return_dict=True).audio_codes.transpose(1, 2)
        ours = codec.encode(wave)
        assert torch.equal(theirs, ours)
        made = official.decoder(ours.transpose(1, 2)).squeeze(1)
        torch.testing.assert_close(codec.from_codes(ours).wave.clamp(-1, 1), made, atol=1e-5, rtol=1e-4)


def test_codes_stay_within_their_level(codec: TrainableCodec, wave: torch.Tensor) -> None:
    codes = codec.encode(wave)
    assert codes.shape == (2, 70, 16)
    assert (codes.amax((0, 1)) < torch.tensor(FALLING)).all()
    assert len(codes[..., 0].unique()) > 5


def test_a_code_that_nobody_uses_is_decoded_like_one_that_is_used(folder: Path) -> None:
    decoder = load_qwen_tts().Qwen3TTSTokenizer.from_pretrained(str(folder), dtype=torch.float32).model.decoder.eval()
    codes = torch.zeros(1, 16, 10, dtype=torch.long)
    unused = codes.clone()
    unused[:, 5] = FALLING[5] * 2
    with torch.inference_mode():
        assert torch.equal(decoder(codes), decoder(unused))


def test_a_written_codec_is_loaded_and_encodes_alike(
    codec: TrainableCodec, folder: Path, wave: torch.Tensor, tmp_path: Path
) -> None:
    pack(folder, tmp_path / "codec.tar")
    loaded = load_codec(unpacked(tmp_path / "codec.tar", tmp_path), SMALL, FALLING)
    assert torch.equal(loaded.encode(wave), codec.encode(wave))


def test_the_loss_hears_silence_and_small_changes(wave: torch.Tensor) -> None:
    loss = SpectralLoss()
    assert float(loss(wave, wave)) == 0
    assert 0 < float(loss(wave * 0.9, wave)) < float(loss(wave * 0.5, wave)) < float(loss(wave * 0, wave))


@pytest.mark.slow
def test_in_haste_codes_stay_and_sound_nearly_does(codec: TrainableCodec, wave: torch.Tensor) -> None:
    hasty, codes = copy.deepcopy(codec), codec.encode(wave)
    exact = hasty.from_codes(codes).wave.detach()
    hasty.hasten()
    assert torch.equal(hasty.encode(wave), codes)
    rough = hasty.from_codes(codes).wave.detach()
    assert rough.dtype == torch.float32
    assert 0 < float((rough - exact).std() / exact.std()) < 0.05
    hasty.settle()
    assert torch.equal(hasty.from_codes(codes).wave, exact)


@pytest.mark.parametrize("hasten", [False, True])
@pytest.mark.slow
def test_refining_trains_the_decoder_and_leaves_codes_alone(
    codec: TrainableCodec, wave: torch.Tensor, tmp_path: Path, hasten: bool
) -> None:
    samples = (wave.reshape(-1, FRAME) * 32767).to(torch.int16)
    data = CodecData(samples, torch.zeros(len(samples), 3, dtype=torch.uint8), torch.tensor([0, 70]))
    plan = CodecPlan(SMALL, FALLING, 2.0, 2, 20, 1e-3, 1, 0, tmp_path / "state", hasten=hasten)
    loss, codes = SpectralLoss(), codec.encode(wave)
    trainer = CodecTrainer(plan, data, loss, CPU, lambda line: None)
    trainer.refine(codec)
    trainer.run()
    assert torch.equal(trainer.codec.encode(wave), codes)
    with torch.no_grad():
        assert loss(trainer.codec.from_codes(codes).wave, wave) < loss(codec.from_codes(codes).wave, wave)


def test_pitch_is_heard_in_what_repeats_itself() -> None:
    time = torch.arange(24_000) / 24_000
    buzz, higher = (0.2 * torch.sign(torch.sin(2 * torch.pi * pitch * time)) for pitch in (110, 165))
    torch.manual_seed(0)
    noise = torch.randn(24_000)
    _, windows = pitch_kept(buzz, buzz)
    assert windows >= 29
    assert pitch_kept(buzz + 0.05 * noise, buzz) == (windows, windows)
    assert pitch_kept(higher, buzz) == (0, windows)
    assert pitch_kept(0.2 * noise, buzz)[0] <= 1
    assert pitch_kept(buzz, 0.2 * noise)[1] <= 1
    assert pitch_kept(buzz, torch.zeros(24_000)) == (0, 0)
