"""The structures of ``csrc/params.cuh`` in ctypes. A test has NVRTC check sizes and offsets against the header."""

import ctypes
from collections.abc import Sequence

from megatalker_kernels.constants import ROWS, LaunchMode
from megatalker_kernels.schedule import Launch
from megatalker_kernels.shapes import KernelShape


class Filter(ctypes.Structure):
    """How one stage (talker or predictor) narrows and chooses."""

    _fields_ = (
        ("dropped", ctypes.c_double),
        ("inverse_temperature", ctypes.c_double),
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int),
        ("do_sample", ctypes.c_int),
        ("unused", ctypes.c_int),
    )


class Sampling(ctypes.Structure):
    """How one stream chooses its codes."""

    _fields_ = (
        ("talker", Filter),
        ("predictor", Filter),
        ("inverse_penalty", ctypes.c_double),
        ("key", ctypes.c_uint32 * 2),
        ("penalty", ctypes.c_float),
        ("min_frames", ctypes.c_int),
    )


def sampling_filter(*, do_sample: bool, temperature: float, top_k: int | None, top_p: float) -> Filter:
    """A filter from parameters as the sampling contract names them."""
    dropped = 1.0 - top_p if top_p < 1 else -1.0
    most = 2**31 - 1 if top_k is None else top_k
    return Filter(dropped, 1 / ctypes.c_float(temperature).value, temperature, most, do_sample, 0)


def sampling(talker: Filter, predictor: Filter, *, seed: int, penalty: float, min_frames: int) -> Sampling:
    """All of one stream's parameters; ``seed`` has 64 bits."""
    key = (ctypes.c_uint32 * 2)(seed & 0xFFFFFFFF, seed >> 32)
    return Sampling(talker, predictor, 1 / ctypes.c_float(penalty).value, key, penalty, min_frames)


POINTERS_FIRST = ("weights", "block_offset", "talker_norms", "predictor_norms", "projection_bias")
POINTERS_MIDDLE = ("talker_rope", "predictor_rope", "talker_kv", "predictor_kv")
POINTERS_LAST = (
    *("text", "x", "qkv", "attention", "activation", "chosen", "partial", "arrivals", "hidden", "projected", "pending"),
    *("predictor_logits", "stream", "gumbel_table", "decay_table", "barrier", "profile", "codes", "status"),
)


ROW_FIELDS = ("slot", "position", "frame", "forced")
WIDE_PLAN = ("row", "chunk", "first", "heard", "source")
"""Arrays of the plan that says what a wide launch does with its rows."""
WIDE_POINTERS = ("operand", "squares", "picked", "row_chunk")


class Structures:
    """The structures whose layout depends on the number of code groups."""

    def __init__(self, shape: KernelShape) -> None:
        groups = shape.code_groups
        tables = ctypes.c_void_p * groups
        seen, pages = ctypes.c_uint32 * (shape.talker.vocab // 32), ctypes.c_int * shape.max_pages
        self.stream = _structure("Stream", [("sampling", Sampling), ("seen", seen), ("pages", pages)])
        self.row = _structure(
            "Row",
            [(name, ctypes.c_int) for name in ROW_FIELDS] + [("codes", ctypes.c_int * groups)],
        )
        self.launch = _structure(
            "Launch",
            [(name, ctypes.c_int) for name in ("mode", "rows", "stop_after", "stall_phase", "stall_block")]
            + [("row", self.row * ROWS)],
        )
        self.buffers = _structure(
            "Buffers",
            [(name, ctypes.c_void_p) for name in POINTERS_FIRST]
            + [("sum_tables", tables), ("input_tables", tables)]
            + [(name, ctypes.c_void_p) for name in POINTERS_MIDDLE]
            + [("pages", ctypes.c_int), ("slots", ctypes.c_int)]
            + [(name, ctypes.c_void_p) for name in POINTERS_LAST]
            + [("ticket", ctypes.c_int), ("eos", ctypes.c_int)]
            + [("talker_eps", ctypes.c_float), ("predictor_eps", ctypes.c_float), ("spin_ticks", ctypes.c_uint64)],
        )
        self.params = _structure("Params", [("to", self.buffers), ("launch", self.launch)])
        self.wide_buffers = _structure(
            "WideBuffers",
            [(name, ctypes.c_void_p) for name in (*WIDE_PLAN, *WIDE_POINTERS)]
            + [(name, ctypes.c_int) for name in ("chunks", "heards", "room")],
        )
        self.wide_params = _structure(
            "WideParams", [("to", self.buffers), ("launch", self.launch), ("wide", self.wide_buffers)]
        )

    def all(self) -> dict[str, type[ctypes.Structure]]:
        """Every structure by its name in the header."""
        return {
            "Filter": Filter,
            "Sampling": Sampling,
            "Stream": self.stream,
            "Row": self.row,
            "Launch": self.launch,
            "Buffers": self.buffers,
            "Params": self.params,
            "WideBuffers": self.wide_buffers,
            "WideParams": self.wide_params,
        }


def fill_launch(target: ctypes.Structure, launch: Launch) -> None:
    """Write ``launch`` into a ``Launch`` structure; the rows of a wide one have their place elsewhere."""
    values = {
        "mode": LaunchMode[launch.mode.upper()],
        "rows": len(launch.rows),
        "stop_after": launch.stop_after,
        "stall_phase": launch.stall_phase,
        "stall_block": launch.stall_block,
    }
    for name, value in values.items():
        setattr(target, name, value)
    for index, row in enumerate(() if launch.wide else launch.rows):
        entry = target.row[index]
        entry.slot, entry.position, entry.frame = row.slot, row.position, row.frame
        entry.forced = row.forced is not None
        if row.forced is not None:
            entry.codes[:] = row.forced


def _structure(name: str, members: Sequence[tuple[str, type]]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(members)})
