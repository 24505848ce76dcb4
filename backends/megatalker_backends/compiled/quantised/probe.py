"""Products of the kind that rounded layers take, for a measurement."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from megatalker_backends.compiled.quantised.graph import CONTRIB, INT8_ACTIVATIONS
from megatalker_backends.compiled.quantised.groups import GROUPS
from megatalker_backends.compiled.rounding import PROBE_MATRICES, PROBE_SHAPE


def packed_products(bits: int) -> Callable[[], object]:
    """Return a function that multiplies one row with :data:`PROBE_MATRICES` matrices, one after another."""
    (outputs, inputs), size = PROBE_SHAPE, GROUPS[bits]
    groups = inputs // size
    quanta = np.zeros((outputs, groups, size * bits // 8), np.uint8)
    sizes: dict[str, Any] = {
        "N": outputs,
        "K": inputs,
        "bits": bits,
        "block_size": size,
        "accuracy_level": INT8_ACTIVATIONS,
    }
    tensors, nodes, results = [], [], []
    for index in range(PROBE_MATRICES):
        names = f"quanta.{index}", f"scales.{index}"
        tensors.append(numpy_helper.from_array(quanta, names[0]))
        tensors.append(numpy_helper.from_array(np.ones((outputs, groups), np.float32), names[1]))
        nodes.append(helper.make_node("MatMulNBits", ["x", *names], [f"y.{index}"], domain=CONTRIB, **sizes))
        results.append(helper.make_tensor_value_info(f"y.{index}", TensorProto.FLOAT, [1, outputs]))
    row = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inputs])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    graph = helper.make_graph(nodes, "products", [row], results, tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    x = np.ones((1, inputs), np.float32)
    return lambda: session.run(None, {"x": x})
