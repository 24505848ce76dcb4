"""Names and shapes of the tensors in an official checkpoint, derived from its configuration. Pure functions."""

from megatalker.checkpoint.config import CodecConfig, ModelConfig, TransformerShape
from megatalker.checkpoint.encoder_config import HALVING, MEL_BANDS, CodecEncoderConfig, SpeakerEncoderConfig

Shapes = dict[str, tuple[int, ...]]


def talker_shapes(config: ModelConfig) -> Shapes:
    """Every tensor of the talker and its code predictor in ``model.safetensors``."""
    talker, predictor, text = config.talker, config.predictor, config.text_hidden_size
    shapes: Shapes = {
        "talker.model.codec_embedding.weight": (talker.vocab_size, talker.hidden_size),
        "talker.model.text_embedding.weight": (config.text_vocab_size, text),
        **_linear("talker.text_projection.linear_fc1", text, text, bias=True),
        **_linear("talker.text_projection.linear_fc2", text, talker.hidden_size, bias=True),
        **_stack("talker.model", talker),
        **_linear("talker.codec_head", talker.hidden_size, talker.vocab_size),
        **_stack("talker.code_predictor.model", predictor),
    }
    for index in range(config.num_code_groups - 1):
        embedding = f"talker.code_predictor.model.codec_embedding.{index}.weight"
        shapes[embedding] = (predictor.vocab_size, talker.hidden_size)  # the talker reads it as well
        shapes |= _linear(f"talker.code_predictor.lm_head.{index}", predictor.hidden_size, predictor.vocab_size)
    if config.projects_predictor:
        name = "talker.code_predictor.small_to_mtp_projection"
        shapes |= _linear(name, talker.hidden_size, predictor.hidden_size, bias=True)
    return shapes


def codec_decoder_shapes(config: CodecConfig) -> Shapes:
    """Every tensor of the codes-to-waveform half of ``speech_tokenizer/model.safetensors`` that decoding reads."""
    latent = config.latent_dim
    shapes: Shapes = {
        **_decoder_quantizer(config),
        **_conv("decoder.pre_conv.conv", config.codebook_dim, latent, 3),
        **_decoder_transformer(config),
    }
    for index, ratio in enumerate(config.upsampling_ratios):
        shapes |= _transposed_conv(f"decoder.upsample.{index}.0.conv", latent, latent, ratio)
        shapes |= _convnext(f"decoder.upsample.{index}.1", latent)
    shapes |= _conv("decoder.decoder.0.conv", latent, config.decoder_dim, 7)
    for index, rate in enumerate(config.upsample_rates):
        shapes |= _upsample_block(f"decoder.decoder.{index + 1}.block", config.decoder_dim >> index, rate)
    width, last = config.decoder_dim >> len(config.upsample_rates), len(config.upsample_rates) + 1
    shapes |= _snake(f"decoder.decoder.{last}", width)
    shapes |= _conv(f"decoder.decoder.{last + 1}.conv", width, 1, 7)
    return shapes


def codec_unused_shapes(config: CodecConfig) -> Shapes:
    """Tensors of the decoder half that only training read, yet that official files contain."""
    size = (config.codebook_dim // 2, config.codebook_dim, 1)
    return {f"decoder.quantizer.{part}.input_proj.weight": size for part in ("rvq_first", "rvq_rest")}


def codec_encoder_shapes(config: CodecEncoderConfig) -> Shapes:
    """Every tensor of the waveform-to-codes half of ``speech_tokenizer/model.safetensors``."""
    hidden = config.hidden_size
    shapes = _conv("encoder.encoder.layers.0.conv", 1, config.num_filters, config.kernel_size)
    layer, width = 1, config.num_filters
    for stride in config.strides:
        for _ in range(config.num_residual_layers):
            narrow, name = width // config.compress, f"encoder.encoder.layers.{layer}.block"
            shapes |= _conv(f"{name}.1.conv", width, narrow, config.residual_kernel_size)
            shapes |= _conv(f"{name}.3.conv", narrow, width, 1)
            layer += 1
        layer += 1  # an activation
        shapes |= _conv(f"encoder.encoder.layers.{layer}.conv", width, width * 2, stride * 2)
        layer, width = layer + 1, width * 2
    shapes |= _conv(f"encoder.encoder.layers.{layer + 1}.conv", width, hidden, config.last_kernel_size)
    for index in range(config.num_layers):
        shapes |= _encoder_layer(f"encoder.encoder_transformer.layers.{index}", config)
    shapes["encoder.downsample.conv.weight"] = (hidden, hidden, 2 * HALVING)
    semantic = config.num_semantic_quantizers
    for kind, count in (("semantic", semantic), ("acoustic", config.num_quantizers - semantic)):
        shapes |= _encoder_quantizer(f"encoder.quantizer.{kind}_residual_vector_quantizer", count, config)
    return shapes


def speaker_encoder_shapes(config: SpeakerEncoderConfig) -> Shapes:
    """Every tensor of the Base variant's speaker encoder in ``model.safetensors``."""
    channels, kernels, squeeze = config.channels, config.kernel_sizes, config.squeeze_channels
    shapes = _conv("speaker_encoder.blocks.0.conv", MEL_BANDS, channels[0], kernels[0])
    for index in range(1, len(channels) - 1):
        name, narrow, width = f"speaker_encoder.blocks.{index}", channels[index - 1], channels[index]
        part_width = width // config.scale
        shapes |= _conv(f"{name}.tdnn1.conv", narrow, width, 1)
        for part in range(config.scale - 1):
            shapes |= _conv(f"{name}.res2net_block.blocks.{part}.conv", part_width, part_width, kernels[index])
        shapes |= _conv(f"{name}.tdnn2.conv", width, width, 1)
        shapes |= _conv(f"{name}.se_block.conv1", width, squeeze, 1)
        shapes |= _conv(f"{name}.se_block.conv2", squeeze, width, 1)
    shapes |= _conv("speaker_encoder.mfa.conv", channels[-1], channels[-1], kernels[-1])
    shapes |= _conv("speaker_encoder.asp.tdnn.conv", channels[-1] * 3, config.attention_channels, 1)
    shapes |= _conv("speaker_encoder.asp.conv", config.attention_channels, channels[-1], 1)
    shapes |= _conv("speaker_encoder.fc", channels[-1] * 2, config.output_size, 1)
    return shapes


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    return shapes | ({f"{name}.bias": (outputs,)} if bias else {})


def _conv(name: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, kernel), f"{name}.bias": (outputs,)}


def _transposed_conv(name: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (inputs, outputs, kernel), f"{name}.bias": (outputs,)}


def _snake(name: str, width: int) -> Shapes:
    return {f"{name}.alpha": (width,), f"{name}.beta": (width,)}


def _gated_mlp(name: str, hidden: int, intermediate: int) -> Shapes:
    return {
        **_linear(f"{name}.gate_proj", hidden, intermediate),
        **_linear(f"{name}.up_proj", hidden, intermediate),
        **_linear(f"{name}.down_proj", intermediate, hidden),
    }


def _attention(name: str, hidden: int, heads: int, kv_heads: int, head_dim: int) -> Shapes:
    return {
        **_linear(f"{name}.q_proj", hidden, heads * head_dim),
        **_linear(f"{name}.k_proj", hidden, kv_heads * head_dim),
        **_linear(f"{name}.v_proj", hidden, kv_heads * head_dim),
        **_linear(f"{name}.o_proj", heads * head_dim, hidden),
    }


def _stack(name: str, shape: TransformerShape) -> Shapes:
    shapes: Shapes = {f"{name}.norm.weight": (shape.hidden_size,)}
    for index in range(shape.num_layers):
        layer, hidden = f"{name}.layers.{index}", shape.hidden_size
        shapes |= _attention(f"{layer}.self_attn", hidden, shape.num_heads, shape.num_kv_heads, shape.head_dim)
        shapes |= {f"{layer}.self_attn.{part}_norm.weight": (shape.head_dim,) for part in "qk"}
        shapes |= _gated_mlp(f"{layer}.mlp", hidden, shape.intermediate_size)
        shapes |= {f"{layer}.{part}_layernorm.weight": (hidden,) for part in ("input", "post_attention")}
    return shapes


def _decoder_quantizer(config: CodecConfig) -> Shapes:
    shapes: Shapes = {}
    width = config.codebook_dim // 2
    for part, count in (("rvq_first", 1), ("rvq_rest", config.num_quantizers - 1)):
        name = f"decoder.quantizer.{part}"
        shapes[f"{name}.output_proj.weight"] = (config.codebook_dim, width, 1)
        for index in range(count):
            book = f"{name}.vq.layers.{index}._codebook"
            shapes[f"{book}.cluster_usage"] = (config.codebook_size,)
            shapes[f"{book}.embedding_sum"] = (config.codebook_size, width)
    return shapes


def _decoder_transformer(config: CodecConfig) -> Shapes:
    name, hidden = "decoder.pre_transformer", config.hidden_size
    shapes: Shapes = {
        **_linear(f"{name}.input_proj", config.latent_dim, hidden, bias=True),
        **_linear(f"{name}.output_proj", hidden, config.latent_dim, bias=True),
        f"{name}.norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        layer = f"{name}.layers.{index}"
        shapes |= _attention(f"{layer}.self_attn", hidden, config.num_heads, config.num_kv_heads, config.head_dim)
        shapes |= _gated_mlp(f"{layer}.mlp", hidden, config.intermediate_size)
        shapes |= {f"{layer}.{part}_layernorm.weight": (hidden,) for part in ("input", "post_attention")}
        shapes |= {f"{layer}.{part}_layer_scale.scale": (hidden,) for part in ("self_attn", "mlp")}
    return shapes


def _convnext(name: str, width: int) -> Shapes:
    return {
        **_conv(f"{name}.dwconv.conv", 1, width, 7),
        **{f"{name}.norm.{part}": (width,) for part in ("weight", "bias")},
        **_linear(f"{name}.pwconv1", width, 4 * width, bias=True),
        **_linear(f"{name}.pwconv2", 4 * width, width, bias=True),
        f"{name}.gamma": (width,),
    }


def _upsample_block(name: str, width: int, rate: int) -> Shapes:
    half = width // 2
    shapes = {**_snake(f"{name}.0", width), **_transposed_conv(f"{name}.1.conv", width, half, 2 * rate)}
    for unit in (2, 3, 4):
        shapes |= _snake(f"{name}.{unit}.act1", half) | _conv(f"{name}.{unit}.conv1.conv", half, half, 7)
        shapes |= _snake(f"{name}.{unit}.act2", half) | _conv(f"{name}.{unit}.conv2.conv", half, half, 1)
    return shapes


def _encoder_layer(name: str, config: CodecEncoderConfig) -> Shapes:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    return {
        **_attention(f"{name}.self_attn", hidden, config.num_heads, config.num_kv_heads, config.head_dim),
        **_linear(f"{name}.mlp.fc1", hidden, intermediate),
        **_linear(f"{name}.mlp.fc2", intermediate, hidden),
        **{
            f"{name}.{norm}_layernorm.{part}": (hidden,)
            for norm in ("input", "post_attention")
            for part in ("weight", "bias")
        },
        **{f"{name}.{part}_layer_scale.scale": (hidden,) for part in ("self_attn", "mlp")},
    }


def _encoder_quantizer(name: str, count: int, config: CodecEncoderConfig) -> Shapes:
    inner, hidden, size = config.codebook_dim, config.hidden_size, config.codebook_size
    shapes: Shapes = {
        f"{name}.input_proj.weight": (inner, hidden, 1),
        f"{name}.output_proj.weight": (hidden, inner, 1),
    }
    for index in range(count):
        book = f"{name}.layers.{index}.codebook"
        shapes[f"{book}.initialized"] = (1,)
        shapes[f"{book}.cluster_usage"] = (size,)
        shapes[f"{book}.embed_sum"] = (size, inner)
    return shapes
