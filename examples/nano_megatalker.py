"""Streaming speech from a Qwen3-TTS checkpoint in one file: read it top to bottom in an evening.

Six parts, in the order in which data flows::

    text -> token ids -> prompt rows -> talker -> code predictor -> codec -> samples
             (1)            (2)         (3)          (4)+(5)        (6)

A *frame* is 80 ms of speech: 16 integer codes, one from the talker and fifteen from the code predictor. The codec turns
each frame into 1,920 samples at 24 kHz as soon as the frame exists. Nothing here is fast, batched or checked;
megatalker is that. Codes equal those of every megatalker backend in float32, and samples agree within 1e-4; a test
holds it::

    python examples/nano_megatalker.py "Hello there." hello.wav --voice mina --checkpoint FOLDER

It speaks CustomVoice checkpoints in the official layout (``config.json``, ``model.safetensors``, ``speech_tokenizer/``)
without instructions or dialects. Sources: the official package ``qwen-tts`` 0.1.1 for the model, Salmon et al. 2011 for
Philox, Gumbel 1954 for the choice.
"""

import argparse
import json
import secrets
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

Read = Callable[[str], Tensor]
"""Returns the float32 tensor of an official name."""
Table = list[tuple[int, int, int, int]]
"""Rows of fixed-point cubics."""

# ------------------------------------------------------------------------------------------------- reading a checkpoint


def reader(folder: Path, dtype: torch.dtype = torch.float32) -> Read:
    """Open the weights of a folder and return a function that reads one tensor, keeping it for the next time."""
    files = [safe_open(str(path), "pt") for path in sorted(folder.glob("*.safetensors"))]
    places = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is not a dictionary
    return cache(lambda name: places[name].get_tensor(name).to(dtype))


def read_json(path: Path) -> dict[str, Any]:
    """Read one of the configuration files."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


# ---------------------------------------------------------------------------------------------------- 1. text to tokens

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern by which Qwen2 tokenizers split a text into words."""


def load_tokenizer(folder: Path) -> Any:
    """Make the byte-level BPE tokenizer, with the control tokens of the configuration."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    added = read_json(folder / "tokenizer_config.json")["added_tokens_decoder"]
    tokenizer.add_tokens([AddedToken(**added[key]) for key in sorted(added, key=int)])
    return tokenizer


def text_to_ids(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Return the ids of the role, which opens the assistant's turn, and those of the text."""
    role = "<|im_start|>assistant\n"
    ids = tokenizer.encode(f"{role}{text}<|im_end|>\n{role}").ids
    return ids[:3], ids[3:-5]


# ------------------------------------------------------------------------------------------------ 2. tokens to a prompt


def build_prompt(
    read: Read, config: dict[str, Any], role: list[int], ids: list[int], voice: str
) -> tuple[Tensor, Tensor]:
    """Build what the talker reads before the first frame, with the whole text in it ("upfront" layout).

    Every row is the sum of a text row and a codec row; where one side has nothing to say it says "pad".

    Returns:
        The prompt ``[T, hidden]``, and the row ``[hidden]`` that is added to every frame after it.
    """
    talker = config["talker_config"]

    def text_rows(ids: list[int]) -> Tensor:
        rows = F.embedding(torch.tensor(ids), read("talker.model.text_embedding.weight"))
        first, second = (f"talker.text_projection.linear_fc{number}" for number in (1, 2))
        rows = F.silu(F.linear(rows, read(f"{first}.weight"), read(f"{first}.bias")))
        return F.linear(rows, read(f"{second}.weight"), read(f"{second}.bias"))

    def codec_rows(*ids: int) -> Tensor:
        return F.embedding(torch.tensor(ids), read("talker.model.codec_embedding.weight"))

    begin, end, pad = text_rows(
        [config["tts_bos_token_id"], config["tts_eos_token_id"], config["tts_pad_token_id"]]
    ).split(1)
    # No language is named: "nothink" tells the talker to find it out itself.
    tags = [
        talker["codec_nothink_id"],
        talker["codec_think_bos_id"],
        talker["codec_think_eos_id"],
        talker["spk_id"][voice],
    ]
    codec_pad = codec_rows(talker["codec_pad_id"])
    head = torch.cat([pad.expand(len(tags), -1), begin]) + torch.cat([codec_rows(*tags), codec_pad])
    said = torch.cat([text_rows(ids), end, pad])
    coded = torch.cat([codec_pad.expand(len(ids) + 1, -1), codec_rows(talker["codec_bos_id"])])
    return torch.cat([text_rows(role), head, said + coded]), pad[0]


# ----------------------------------------------------------------------------------------------------- 3. a transformer


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square over the last dimension, then scale."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[positions, head_dim]`` of rotary position embedding, both halves alike."""
    angles = positions.float()[:, None] * (1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding to ``[heads, positions, head_dim]``."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def transformer(
    read: Read, name: str, config: dict[str, Any], x: Tensor, cache: list[Tensor], *, window: int | None = None
) -> Tensor:
    """Run a stack of decoder layers over the next positions of one stream.

    The talker, the code predictor and the transformer inside the codec are this same function; the codec's has layer
    scales and a window, and no norms on queries and keys.

    Args:
        read: the checkpoint's tensors.
        name: official prefix of the stack.
        config: sizes of the stack.
        x: ``[positions, hidden]``.
        cache: keys and values of all layers, ``[2, kv heads, positions so far, head_dim]`` each, extended in place;
            empty at the start of a stream.
        window: how many positions each one sees, itself included. ``None``: all.

    Returns:
        ``[positions, hidden]``, normed.
    """
    heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, new = config["rms_norm_eps"], len(x)
    past = cache[0].shape[2] if cache else 0
    positions = torch.arange(past, past + new)
    cos, sin = rotary(positions, head_dim, config["rope_theta"])
    age = positions[:, None] - torch.arange(past + new)
    seen = (age >= 0) if window is None else (age >= 0) & (age < window)
    for layer in range(config["num_hidden_layers"]):
        of = f"{name}.layers.{layer}"
        rows = rms_norm(x, read(f"{of}.input_layernorm.weight"), eps)
        parts = [F.linear(rows, read(f"{of}.self_attn.{part}_proj.weight")) for part in "qkv"]
        query, key, value = (part.view(new, -1, head_dim).transpose(0, 1) for part in parts)
        if window is None:
            query = rms_norm(query, read(f"{of}.self_attn.q_norm.weight"), eps)
            key = rms_norm(key, read(f"{of}.self_attn.k_norm.weight"), eps)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        kept = torch.stack([key, value])
        if layer == len(cache):
            cache.append(kept)
        else:
            cache[layer] = torch.cat([cache[layer], kept], 2)
        keys, values = cache[layer].repeat_interleave(heads // kv_heads, 1)
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        out = F.linear(mixed.transpose(0, 1).flatten(1), read(f"{of}.self_attn.o_proj.weight"))
        x = x + (out if window is None else out * read(f"{of}.self_attn_layer_scale.scale"))
        rows = rms_norm(x, read(f"{of}.post_attention_layernorm.weight"), eps)
        gate, up = (F.linear(rows, read(f"{of}.mlp.{part}_proj.weight")) for part in ("gate", "up"))
        out = F.linear(F.silu(gate) * up, read(f"{of}.mlp.down_proj.weight"))
        x = x + (out if window is None else out * read(f"{of}.mlp_layer_scale.scale"))
    return rms_norm(x, read(f"{name}.norm.weight"), eps)


# --------------------------------------------------------------------------------------------- 4. the sampling contract
#
# The same logits and the same seed give the same code on every machine. So the noise is a pure function of (seed,
# frame, codebook, id), and logarithm and exponential are integer arithmetic: tables of cubics in fixed point.


def cubics(function: Callable[[Decimal], Decimal], starts: list[tuple[Decimal, Decimal]], bits: int) -> Table:
    """Fit a cubic to each segment (start, width), with coefficients in units of ``2**-bits``."""
    rows = []
    for start, width in starts:
        y0, y1, y2, y3 = (function(start + width * third / 3) for third in range(4))
        exact = (
            y0,
            (-11 * y0 + 18 * y1 - 9 * y2 + 2 * y3) / 2,
            (18 * y0 - 45 * y1 + 36 * y2 - 9 * y3) / 2,
            (-9 * y0 + 27 * y1 - 27 * y2 + 9 * y3) / 2,
        )
        c0, c1, c2, c3 = (int((value * 2**bits).to_integral_value()) for value in exact)
        rows.append((c0, c1, c2, c3))
    return rows


@cache
def gumbel_table() -> np.ndarray:
    """Coefficients of ``-ln(-ln u)`` for u in (0, 1): 24 octaves of the distance to each end, 16 segments an octave."""
    with localcontext() as context:
        context.prec = 30
        scale = Decimal(2) ** -25
        starts = [
            ((16 + segment) * Decimal(2) ** octave / 16, Decimal(2) ** octave / 16)
            for octave in range(24)
            for segment in range(16)
        ]
        lower = cubics(lambda a: -(-(a * scale).ln()).ln(), starts, 26)
        return np.array(lower + cubics(lambda a: -(-(1 - a * scale).ln()).ln(), starts, 26))


@cache
def decay_table() -> np.ndarray:
    """Coefficients of ``exp(-d)`` for d from 0 to 32, a segment each eighth."""
    with localcontext() as context:
        context.prec = 30
        starts = [(Decimal(row) / 8, Decimal(1) / 8) for row in range(256)]
        return np.array(cubics(lambda d: (-d).exp(), starts, 40))


def evaluate(rows: np.ndarray, position: np.ndarray, bits: int) -> np.ndarray:
    """Evaluate cubics at integer positions of ``bits`` bits inside their segments."""
    value = rows[..., 3] * position >> bits
    value = (value + rows[..., 2]) * position >> bits
    value = (value + rows[..., 1]) * position >> bits
    return value + rows[..., 0]


def philox(counter: np.ndarray, seed: int) -> np.ndarray:
    """Encrypt counters ``[4, n]`` with ten rounds of Philox4x32: ``[4, n]`` random 32-bit words."""
    word, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = counter.astype(np.uint64)
    for number in range(10):
        k0 = np.uint64(((seed & 0xFFFFFFFF) + number * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64(((seed >> 32) + number * 0xBB67AE85) & 0xFFFFFFFF)
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> shift) ^ c1 ^ k0, right & word, (left >> shift) ^ c3 ^ k1, left & word
    return np.stack([c0, c1, c2, c3])


def gumbel_noise(seed: int, frame: int, codebook: int, size: int) -> np.ndarray:
    """Gumbel noise ``-ln(-ln u)`` of every id: float32 ``[size]``."""
    counter = np.zeros((4, -(-size // 4)))
    counter[0], counter[1], counter[2] = np.arange(counter.shape[1]), codebook, frame
    words = philox(counter, seed).T.reshape(-1)[:size]
    numerator = (words >> np.uint64(8)).astype(np.int64) * 2 + 1  # u = numerator / 2**25
    upper = numerator > 2**24
    bits = np.where(upper, 2**25 - numerator, numerator).astype(np.float32).view(np.int32).astype(np.int64)
    rows = gumbel_table()[(bits >> 19) - 127 * 16 + 384 * upper]
    noise: np.ndarray = evaluate(rows, bits & (2**19 - 1), 19).astype(np.float32) * np.float32(2.0**-26)
    return noise


def choose(
    logits: Tensor, noise: Callable[[int], np.ndarray], do_sample: bool, temperature: float, top_k: int, top_p: float
) -> int:
    """Choose a code: temperature, top-k, top-p, then the largest logit plus Gumbel noise, which is exact sampling."""
    raw = logits.float().numpy()
    if not do_sample:
        return int(raw.argmax())
    scaled = raw / np.float32(temperature)
    kept = scaled >= np.sort(scaled)[-min(top_k or len(scaled), len(scaled))]
    if top_p < 1:
        rising = np.sort(scaled[kept])
        steps = (np.minimum(rising[-1] - rising, np.float32(31.5)) * np.float32(2**20)).astype(np.int64)
        heavy = np.cumsum(evaluate(decay_table()[steps >> 17], steps & (2**17 - 1), 17))
        kept = scaled >= rising[np.argmax(heavy > (1.0 - top_p) * np.float64(heavy[-1]))]
    return int(np.where(kept, scaled + noise(len(scaled)), -np.inf).argmax())


def choose_first(logits: Tensor, talker: dict[str, Any], params: dict[str, Any], history: list[int], seed: int) -> int:
    """Choose code 0: a repetition penalty, ids that are no codes barred, end of speech barred for two frames."""
    logits = logits.clone()
    seen = sorted(set(history))
    penalty = np.float32(params["repetition_penalty"])
    logits[seen] = torch.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
    end = talker["codec_eos_token_id"]
    at_end = logits[end].item()
    logits[talker["vocab_size"] - 1024 :] = -torch.inf
    logits[end] = at_end if len(history) >= params.get("min_new_tokens", 2) else -torch.inf
    noise = partial(gumbel_noise, seed, len(history), 0)
    return choose(logits, noise, params["do_sample"], params["temperature"], params["top_k"], params["top_p"])


# ----------------------------------------------------------------------------------------- 5. talker and code predictor


def predict_codes(
    read: Read, talker: dict[str, Any], params: dict[str, Any], hidden: Tensor, first: int, frame: int, seed: int
) -> list[int]:
    """Return all 16 codes of a frame: code 0, and fifteen from the predictor, each seen by the next.

    Args:
        read: the checkpoint's tensors.
        talker: its configuration.
        params: ``generation_config.json``.
        hidden: ``[hidden]``: the talker's last hidden state.
        first: code 0.
        frame: number of the frame.
        seed: of the stream.
    """
    config, name = talker["code_predictor_config"], "talker.code_predictor"
    projects = talker["hidden_size"] != config["hidden_size"]

    def narrow(rows: Tensor) -> Tensor:
        if not projects:
            return rows
        return F.linear(rows, *(read(f"{name}.small_to_mtp_projection.{part}") for part in ("weight", "bias")))

    codes, kept, rows = [first], [], [hidden, read("talker.model.codec_embedding.weight")[first]]
    for group in range(1, talker["num_code_groups"]):
        x = transformer(read, f"{name}.model", config, narrow(torch.stack(rows)), kept)
        logits = F.linear(x[-1], read(f"{name}.lm_head.{group - 1}.weight"))
        noise = partial(gumbel_noise, seed, frame, group)
        how = (params[f"subtalker_{key}"] for key in ("dosample", "temperature", "top_k", "top_p"))
        codes.append(choose(logits, noise, *how))
        rows = [read(f"{name}.model.codec_embedding.{group - 1}.weight")[codes[-1]]]
    return codes


def generate_frames(
    read: Read, config: dict[str, Any], params: dict[str, Any], prompt: Tensor, pad: Tensor, seed: int
) -> Iterator[list[int]]:
    """Yield the codes of one frame after another until the talker says that speech has ended."""
    talker, kept, history = config["talker_config"], [], []
    x = transformer(read, "talker.model", talker, prompt, kept)[-1]
    while len(history) < params["max_new_tokens"] - 1:
        first = choose_first(F.linear(x, read("talker.codec_head.weight")), talker, params, history, seed)
        if first == talker["codec_eos_token_id"]:
            return
        codes = predict_codes(read, talker, params, x, first, len(history), seed)
        yield codes
        history.append(first)
        tables = ["talker.model.codec_embedding"]
        tables += [f"talker.code_predictor.model.codec_embedding.{group}" for group in range(len(codes) - 1)]
        row = (
            torch.stack([read(f"{table}.weight")[code] for table, code in zip(tables, codes, strict=True)]).sum(0) + pad
        )
        x = transformer(read, "talker.model", talker, row[None], kept)[-1]


# ----------------------------------------------------------------------------------------- 6. the codec, frame by frame
#
# Every part of the decoder is causal, so it can run on one frame at a time if each part remembers the end of its
# input. What they remember is one dictionary. Concatenated output equals a single pass over all frames.

Memory = dict[str, Any]


def causal_conv(read: Read, name: str, x: Tensor, memory: Memory, *, dilation: int = 1, groups: int = 1) -> Tensor:
    """Convolve ``[channels, time]`` after what the same layer saw before; at first that is silence."""
    weight, bias = read(f"{name}.conv.weight"), read(f"{name}.conv.bias")
    context = (weight.shape[2] - 1) * dilation
    known = torch.cat([memory.get(name, x.new_zeros(len(x), context)), x], 1)
    memory[name] = known[:, known.shape[1] - context :]
    return F.conv1d(known[None], weight, bias, dilation=dilation, groups=groups)[0]


def causal_upsample(read: Read, name: str, x: Tensor, memory: Memory) -> Tensor:
    """Transposed convolution of kernel ``2 * rate``, its tail cut off: an output needs this step and the one before."""
    weight, bias = read(f"{name}.conv.weight"), read(f"{name}.conv.bias")
    rate = weight.shape[2] // 2
    known = torch.cat([memory.get(name, x.new_zeros(len(x), 1)), x], 1)
    memory[name] = x[:, -1:]
    return F.conv_transpose1d(known[None], weight, stride=rate)[0, :, rate:-rate] + bias[:, None]


def snake(read: Read, name: str, x: Tensor) -> Tensor:
    """SnakeBeta: ``x + sin(x exp(alpha))**2 / exp(beta)`` for ``[channels, time]``."""
    alpha, beta = (read(f"{name}.{part}").exp()[:, None] for part in ("alpha", "beta"))
    return x + (x * alpha).sin() ** 2 / (beta + 1e-9)


def dequantize(read: Read, codes: list[int]) -> Tensor:
    """Sum the codebook entries of one frame, each through its quantizer's projection: ``[width, 1]``."""
    total = torch.zeros(())
    for group, code in enumerate(codes):
        name = "decoder.quantizer." + ("rvq_first" if group == 0 else "rvq_rest")
        book = f"{name}.vq.layers.{max(group - 1, 0)}._codebook"
        entry = read(f"{book}.embedding_sum")[code] / read(f"{book}.cluster_usage")[code].clamp(min=1e-5)
        total = total + F.linear(entry, read(f"{name}.output_proj.weight").squeeze(-1))
    return total[:, None]


def decode_frame(read: Read, config: dict[str, Any], codes: list[int], memory: Memory) -> Tensor:
    """Turn the codes of one frame into 1,920 samples in [-1, 1], and advance ``memory``."""
    decoder = config["decoder_config"]
    x = causal_conv(read, "decoder.pre_conv", dequantize(read, codes), memory)
    name = "decoder.pre_transformer"
    x = F.linear(x.T, read(f"{name}.input_proj.weight"), read(f"{name}.input_proj.bias"))
    kept = memory.setdefault(name, [])
    x = transformer(read, name, decoder, x, kept, window=decoder["sliding_window"])
    x = F.linear(x, read(f"{name}.output_proj.weight"), read(f"{name}.output_proj.bias")).T
    for index in range(len(decoder["upsampling_ratios"])):
        name = f"decoder.upsample.{index}"
        weight = read(f"{name}.0.conv.weight")
        x = F.conv_transpose1d(x[None], weight, read(f"{name}.0.conv.bias"), stride=weight.shape[2])[0]
        rows = causal_conv(read, f"{name}.1.dwconv", x, memory, groups=len(x)).T
        rows = F.layer_norm(rows, rows.shape[1:], read(f"{name}.1.norm.weight"), read(f"{name}.1.norm.bias"), 1e-6)
        rows = F.gelu(F.linear(rows, read(f"{name}.1.pwconv1.weight"), read(f"{name}.1.pwconv1.bias")))
        rows = F.linear(rows, read(f"{name}.1.pwconv2.weight"), read(f"{name}.1.pwconv2.bias"))
        x = x + (rows * read(f"{name}.1.gamma")).T
    x = causal_conv(read, "decoder.decoder.0", x, memory)
    blocks = len(decoder["upsample_rates"])
    for index in range(1, blocks + 1):
        name = f"decoder.decoder.{index}.block"
        x = causal_upsample(read, f"{name}.1", snake(read, f"{name}.0", x), memory)
        for unit, dilation in enumerate((1, 3, 9), 2):
            of = f"{name}.{unit}"
            inner = causal_conv(read, f"{of}.conv1", snake(read, f"{of}.act1", x), memory, dilation=dilation)
            x = x + causal_conv(read, f"{of}.conv2", snake(read, f"{of}.act2", inner), memory)
    x = snake(read, f"decoder.decoder.{blocks + 1}", x)
    return causal_conv(read, f"decoder.decoder.{blocks + 2}", x, memory)[0].clamp(-1, 1)


# --------------------------------------------------------------------------------------------------------- all together


@torch.inference_mode()
def speak(folder: Path, text: str, voice: str, seed: int = 0, **changes: Any) -> Iterator[tuple[list[int], Tensor]]:
    """Speak one text and yield each frame as soon as it exists.

    Args:
        folder: a CustomVoice checkpoint in the official layout.
        text: what to say; a few sentences, since nothing cuts it here.
        voice: name of a speaker of the checkpoint.
        seed: the same seed says the same.
        **changes: of ``generation_config.json``, such as ``temperature=0.5``.

    Yields:
        The 16 codes of the frame, and its 1,920 samples at 24 kHz.
    """
    config, params = read_json(folder / "config.json"), read_json(folder / "generation_config.json") | changes
    codec = read_json(folder / "speech_tokenizer" / "config.json")
    read, read_codec = reader(folder), reader(folder / "speech_tokenizer")
    role, ids = text_to_ids(load_tokenizer(folder), text.strip())
    prompt, pad = build_prompt(read, config, role, ids, voice)
    memory: Memory = {}
    for codes in generate_frames(read, config, params, prompt, pad, seed):
        yield codes, decode_frame(read_codec, codec, codes, memory)


def main() -> None:
    """Write speech to a file while it is made."""
    import soundfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("out", help="a WAV file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder in the official layout")
    parser.add_argument("--voice", required=True, help="a speaker of the checkpoint")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbits(64) if options.seed is None else options.seed
    with soundfile.SoundFile(options.out, "w", 24000, 1) as file:
        for _, samples in speak(options.checkpoint, options.text, options.voice, seed):
            file.write(samples.numpy())


if __name__ == "__main__":
    main()
