"""The table of phases: what a layer is made of, and what stands before and behind the layers of a stack.

The megakernel's phases and their number, the order in which it fetches weights, that in which they are packed, and the
schedule follow from it. ``csrc/phases.cuh`` gets it as macros: what a phase reads and writes is taken from there, and
the sizes of the matrices are asserted.
"""

from dataclasses import astuple, dataclass
from typing import Literal, get_args

StackName = Literal["talker", "predictor"]
PhaseKind = Literal[
    "qkv", "attention", "out", "gate_up", "down", "head", "project", "sum", "begin", "append", "combine"
]
Size = Literal["hidden", "intermediate", "attention", "qkv", "gate_up", "vocab", "talker_hidden"]
"""A property of :class:`~megatalker_kernels.shapes.StackShape`, or the hidden size of the talker for either stack."""
Buffer = Literal["codes", "x", "qkv", "attention", "activation", "hidden", "projected", "logits"]
"""Buffer of :class:`~megatalker_kernels.workspace.Workspace`; ``logits``: the pending ones, or the predictor's."""
Norm = Literal["none", "input", "post", "final"]
"""RMSNorm in front of the product: of a layer's input, behind its attention, or behind the last layer."""
Epilogue = Literal["none", "scale", "add", "swiglu", "bias"]
"""Operation on a product's sums: none, times the norm's factor, added to the residual stream, the factor and then
silu(gate) times up, a bias added."""


@dataclass(frozen=True, slots=True)
class PhaseType:
    """A row of the table."""

    kind: PhaseKind
    rows: Size | None
    """Rows of its matrix; ``None``: it has no matrix."""
    columns: Size | None
    input: Buffer
    norm: Norm
    epilogue: Epilogue
    output: Buffer


# fmt: off
TABLE = (
    #         kind         rows       columns          input         norm     epilogue  output
    PhaseType("qkv",       "qkv",     "hidden",        "x",          "input", "scale",  "qkv"),
    PhaseType("attention", None,      None,            "qkv",        "none",  "none",   "attention"),
    PhaseType("out",       "hidden",  "attention",     "attention",  "none",  "add",    "x"),
    PhaseType("gate_up",   "gate_up", "hidden",        "x",          "post",  "swiglu", "activation"),
    PhaseType("down",      "hidden",  "intermediate",  "activation", "none",  "add",    "x"),
    PhaseType("head",      "vocab",   "hidden",        "x",          "final", "scale",  "logits"),
    PhaseType("project",   "hidden",  "talker_hidden", "hidden",     "none",  "bias",   "projected"),
    PhaseType("sum",       None,      None,            "codes",      "none",  "none",   "x"),
)
# fmt: on
*_layer, HEAD, PROJECT, SUM = TABLE
LAYER = tuple(_layer)
"""The phases of a layer, in their order. ``HEAD`` follows the layers of a pass; ``SUM``, the embeddings of a frame's
codes, leads the talker's; ``PROJECT`` leads the predictor's passes where its hidden size is not the talker's."""
BEGIN = PhaseType("begin", None, None, "codes", "none", "none", "x")
"""Phase of the wide kernel: choose a code, and make the rows of a pass its residual stream."""
APPEND = PhaseType("append", None, None, "qkv", "none", "none", "attention")
"""Phase of the wide kernel: write the keys and values of prompt rows to their pages, before the attention to them."""
COMBINE = PhaseType("combine", None, None, "attention", "none", "none", "attention")
"""Phase of the wide kernel: combine the attention results of a row's chunks, if any row has several."""


def macros() -> dict[str, str]:
    """Preprocessor definitions by name, without the prefix ``MT_``."""
    rows = [(phase.kind.upper(), *astuple(phase)[3:]) for phase in TABLE]
    return {
        "LAYER_PHASES": str(len(LAYER)),
        "LAYER_MATRICES": ",".join(phase.kind.upper() for phase in LAYER if phase.rows is not None),
        "PHASE_KINDS": ",".join(phase.kind.upper() for phase in TABLE),
        "BUFFERS": ",".join(get_args(Buffer)),
        "NORMS": ",".join(get_args(Norm)),
        "EPILOGUES": ",".join(get_args(Epilogue)),
        "PHASES": " ".join(f"PHASE({','.join(row)})" for row in rows),
    }
