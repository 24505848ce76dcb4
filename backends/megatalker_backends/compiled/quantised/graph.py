"""Writes a stack of layers as an ONNX model: its matrices rounded, its attention over a cache that it is lent."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from megatalker.checkpoint.config import TransformerShape
from megatalker_backends.compiled.quantised.groups import GROUPS, group_weights
from megatalker_backends.compiled.weights import LayerWeights

MODEL, DATA = "layers.onnx", "layers.bin"
PAGE = 4096
"""Tensors begin at a multiple of this in the file of data, so that they can be mapped into memory."""
CONTRIB = "com.microsoft"
INT8_ACTIVATIONS = 4
"""``accuracy_level``: activations are rounded to 8 bits by group, and products are sums of integers. Products with
activations in float32 take many times as long on AVX2."""


Size = list[int | str]
"""Sizes of a tensor; a name stands for one that varies between calls."""


class _Writer:
    """A graph under construction, whose large tensors go to a file at once."""

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[TensorProto] = []

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        """A small tensor, inside the model."""
        self.tensors.append(numpy_helper.from_array(value, name))
        return name

    def norm(self, name: str, weight: Tensor) -> str:
        return self.constant(name, weight.numpy())

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **fields: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **fields))
        return outputs[0]

    def product(self, name: str, x: str, matrix: Tensor, bits: int) -> str:
        """``x`` times a matrix ``[outputs, inputs]`` that is rounded here."""
        grouped = group_weights(matrix, bits)
        parts = [self._external(f"{name}.{part}", getattr(grouped, part)) for part in ("quanta", "scales")]
        outputs, inputs = matrix.shape
        sizes = {"N": outputs, "K": inputs, "bits": bits, "block_size": GROUPS[bits]}
        return self.node("MatMulNBits", [x, *parts], [name], CONTRIB, accuracy_level=INT8_ACTIVATIONS, **sizes)

    def _external(self, name: str, tensor: Tensor) -> str:
        self._data.write(b"\0" * (-self._data.tell() % PAGE))
        content = tensor.numpy().tobytes()
        kind = helper.np_dtype_to_tensor_dtype(tensor.numpy().dtype)
        proto = TensorProto(name=name, dims=tensor.shape, data_type=kind, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", DATA), ("offset", self._data.tell()), ("length", len(content))):
            proto.external_data.add(key=key, value=str(value))
        self._data.write(content)
        self.tensors.append(proto)
        return name


def write_stack(
    folder: Path, shape: TransformerShape, layers: Iterable[LayerWeights], norm: Tensor, bits: Sequence[int]
) -> None:
    """Write the model of one stack.

    Its inputs are ``x [1, T, hidden]`` float32, ``last [1]`` and ``total []`` int32 (index of the last position, and
    their number), ``cos`` and ``sin [positions, head_dim / 2]``, and each layer's ``keys.N`` and ``values.N``
    ``[1, kv_heads, positions, head_dim]``; ``y [1, T, hidden]`` comes out behind the last norm, and keys and values as
    ``new_keys.N`` and ``new_values.N``, which may be the same memory.

    Args:
        folder: that gets the files.
        shape: of the stack.
        layers: with float32 matrices.
        norm: the last one.
        bits: of each layer's matrices.
    """
    with (folder / DATA).open("wb") as data:
        writer = _Writer(data)
        y = _layers(writer, shape, layers, norm, bits)
        writer.node("Identity", [y], ["y"])
    row: Size = [1, "length", shape.hidden_size]
    held: Size = [1, shape.num_kv_heads, "positions", shape.head_dim]
    angles: Size = ["positions", shape.head_dim // 2]
    cache = [f"{part}.{layer}" for layer in range(shape.num_layers) for part in ("keys", "values")]
    inputs = [_value("x", row), _value("last", [1], TensorProto.INT32), _value("total", [], TensorProto.INT32)]
    inputs += [_value("cos", angles), _value("sin", angles)]
    inputs += [_value(name, held) for name in cache]
    outputs = [_value("y", row), *(_value(f"new_{name}", held) for name in cache)]
    graph = helper.make_graph(writer.nodes, "layers", inputs, outputs, writer.tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / MODEL)


def _value(name: str, size: Size, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, size)


def _layers(
    writer: _Writer, shape: TransformerShape, layers: Iterable[LayerWeights], norm: Tensor, bits: Sequence[int]
) -> str:
    heads = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    writer.constant("apart", np.array([0, 0, -1, shape.head_dim]))
    writer.constant("together", np.array([0, 0, -1]))
    writer.constant("heads", np.array([count * shape.head_dim for count in heads]))
    writer.constant("halves", np.array([shape.intermediate_size] * 2))
    epsilon: dict[str, Any] = {"epsilon": shape.rms_norm_eps}
    x, x_normed = "x", ""
    for index, weights in enumerate(layers):
        name, size = f"{index}", bits[index]
        before = writer.norm(f"{name}.input_norm", weights.input_norm)
        if index == 0:
            x_normed = writer.node("SimplifiedLayerNormalization", [x, before], ["x_normed"], axis=-1, **epsilon)
        else:  # the residual's sum and the norm in one
            x_normed = _sum_and_norm(writer, shape, f"{index - 1}.down", f"{index - 1}.middle", before, name)
            x = f"{name}.sum"
        packed = writer.product(f"{name}.qkv", x_normed, weights.qkv, size)
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        writer.node("Split", [packed, "heads"], parts, axis=-1)
        for part, weight in ((parts[0], weights.query_norm), (parts[1], weights.key_norm)):
            writer.node("Reshape", [part, "apart"], [f"{part}.apart"])
            inputs = [f"{part}.apart", writer.norm(f"{part}.norm", weight)]
            writer.node("SimplifiedLayerNormalization", inputs, [f"{part}.normed"], axis=-1, **epsilon)
            writer.node("Reshape", [f"{part}.normed", "together"], [f"{part}.ready"])
        lent = [f"keys.{index}", f"values.{index}", "last", "total", "cos", "sin"]
        seen = writer.node(
            "GroupQueryAttention",
            [f"{parts[0]}.ready", f"{parts[1]}.ready", parts[2], *lent],
            [f"{name}.seen", f"new_keys.{index}", f"new_values.{index}"],
            CONTRIB,
            num_heads=shape.num_heads,
            kv_num_heads=shape.num_kv_heads,
            do_rotary=1,
        )
        writer.product(f"{name}.output", seen, weights.output, size)
        middle = writer.norm(f"{name}.mlp_norm", weights.mlp_norm)
        outputs = [f"{name}.middle_normed", "", "", f"{name}.middle"]
        writer.node("SkipSimplifiedLayerNormalization", [f"{name}.output", x, middle], outputs, CONTRIB, **epsilon)
        writer.product(f"{name}.gate_up", outputs[0], weights.gate_up, size)
        writer.node("Split", [f"{name}.gate_up", "halves"], [f"{name}.gate", f"{name}.up"], axis=-1)
        writer.node("QuickGelu", [f"{name}.gate"], [f"{name}.open"], CONTRIB, alpha=1.0)  # that is SiLU
        writer.node("Mul", [f"{name}.open", f"{name}.up"], [f"{name}.gated"])
        writer.product(f"{name}.down", f"{name}.gated", weights.down, size)
    end = writer.norm("norm", norm)
    return _sum_and_norm(writer, shape, f"{name}.down", f"{name}.middle", end, "end")


def _sum_and_norm(writer: _Writer, shape: TransformerShape, one: str, other: str, weight: str, name: str) -> str:
    outputs = [f"{name}.normed", "", "", f"{name}.sum"]
    inputs = [one, other, weight]
    return writer.node("SkipSimplifiedLayerNormalization", inputs, outputs, CONTRIB, epsilon=shape.rms_norm_eps)
