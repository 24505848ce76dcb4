"""Constants, enumerations, order and sizes of phases that Python and CUDA share are written once."""

import ast
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import megatalker_backends
import megatalker_kernels
from megatalker_kernels import constants, nvrtc, phases, shapes
from megatalker_kernels.codec import structures
from megatalker_kernels.codec.launcher import CodecConstants
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.tiles import TILES
from megatalker_kernels.errors import ToolchainError
from megatalker_kernels.packing import stream
from megatalker_kernels.phases import HEAD, LAYER, PROJECT, SUM, PhaseType
from megatalker_kernels.schedule import Launch, Row, schedule
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.trial import MODELS

needs_compiler = pytest.mark.skipif(nvrtc.why_not_compile() is not None, reason=str(nvrtc.why_not_compile()))
MEGAKERNEL, CODEC = nvrtc.SOURCES, nvrtc.SOURCES / "codec"
PYTHON = [
    *Path(megatalker_kernels.__path__[0]).rglob("*.py"),
    *Path(megatalker_backends.__path__[0], "megakernel").rglob("*.py"),
    *Path(megatalker_backends.__path__[0], "streaming", "fused").rglob("*.py"),
]


def fit(model: str = "tiny") -> KernelShape:
    return KernelShape.fit(*MODELS[model], code_groups=16, max_positions=256, processors=4, capability=90)


def text_of(folder: Path) -> str:
    """All sources of a kernel without comments."""
    return "\n".join(re.sub(r"//.*", "", path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.cu*")))


def assigned(path: Path) -> set[str]:
    """Names that a module gives a value."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize(
    ("folder", "given"),
    [(MEGAKERNEL, fit().macros()), (CODEC, CodecConstants(TILES, Numbers.HALVES).macros())],
    ids=["megakernel", "codec"],
)
def test_sources_use_every_macro_that_python_gives(folder: Path, given: list[tuple[str, str]]) -> None:
    words = set(re.findall(r"\w+", text_of(folder)))
    assert {name for name, _ in given} <= words
    assert {word for word in words if word.startswith("MT_")} <= {name for name, _ in given}


def test_a_constant_that_both_know_comes_from_python() -> None:
    """``constexpr int TILE = 8`` in a source would be a second home."""
    known = set().union(*(assigned(path) for path in PYTHON)) | {name[3:] for name, _ in fit().macros()}
    found = re.findall(
        r"\b([A-Z][A-Z0-9_]+) = ([^;,]+)[;,]", "".join(re.findall(r"^constexpr.*", text_of(MEGAKERNEL), re.M))
    )
    shared = {name: value for name, value in found if name in known}
    assert len(shared) > 15
    assert {name: value for name, value in shared.items() if value != f"MT_{name}"} == {}


def test_a_constant_is_assigned_in_one_module() -> None:
    homes = {Path(constants.__file__), Path(structures.__file__)}
    shared = set().union(*(assigned(path) for path in homes))
    assert {"PHASE_BITS", "TILE", "KBLOCK", "MAX_FRAMES"} <= shared
    others = {path.name: assigned(path) & shared for path in PYTHON if path not in homes}
    assert {name: names for name, names in others.items() if names} == {}


@pytest.mark.parametrize("folder", [MEGAKERNEL, CODEC], ids=["megakernel", "codec"])
def test_enumerators_come_from_python(folder: Path) -> None:
    bodies = re.findall(r"\benum\b[^{]*{([^}]*)}", text_of(folder))
    assert bodies
    given = {name for name, _ in (*fit().macros(), *CodecConstants(TILES, Numbers.HALVES).macros())}
    assert {body.strip() for body in bodies} <= given


@pytest.mark.parametrize("number", [*constants.PHILOX_MULTIPLIERS, *constants.PHILOX_WEYL])
def test_numbers_of_the_noise_stand_in_one_file(number: int) -> None:
    files = [path for path in (*PYTHON, *MEGAKERNEL.glob("*.cu*")) if f"{number:x}" in path.read_text("utf-8").lower()]
    assert [path.name for path in files] == ["constants.py"]


def test_types_of_two_bytes_have_names() -> None:
    """The only other use of ``u16`` is an index, not a number of a model."""
    uses = [line.strip() for line in text_of(MEGAKERNEL).splitlines() if "u16" in line]
    assert uses == [
        "u16 place[CHOICES];",
        *(f"using {name} = u16;" for name in ("Weight", "Operand", "Stored")),
        "using u16 = unsigned short;",
    ]


def test_each_phase_reads_the_output_of_the_one_before() -> None:
    """No phase writes the buffer that the one before wrote, which has not been read yet."""
    order = [SUM, *LAYER, *LAYER, HEAD]
    assert all(after.input == before.output != after.output for before, after in pairwise(order))


@needs_compiler
@pytest.mark.parametrize("first", range(len(LAYER) - 1))
def test_phases_in_another_order_do_not_compile(monkeypatch: pytest.MonkeyPatch, first: int, tmp_path: Path) -> None:
    swapped = [*LAYER]
    swapped[first : first + 2] = reversed(swapped[first : first + 2])
    monkeypatch.setattr(phases, "TABLE", (*swapped, HEAD, PROJECT, SUM))
    with pytest.raises(ToolchainError, match=r"the order of phases\.py breaks the hand-over"):
        nvrtc.compile_kernel(fit(), "sm_90", cache=tmp_path)


@needs_compiler
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (replace(LAYER[4], columns="hidden"), "Talker: columns of DOWN"),
        (replace(HEAD, rows="hidden"), "Talker: rows of HEAD"),
        (replace(PROJECT, columns="hidden"), "Predictor: columns of PROJECT"),
        (replace(LAYER[2], norm="input"), "all_with"),
        (replace(LAYER[4], epilogue="scale"), "all_with"),
    ],
    ids=lambda value: value.kind if isinstance(value, PhaseType) else "",
)
def test_a_line_that_the_kernel_does_not_follow_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, changed: PhaseType, complaint: str, tmp_path: Path
) -> None:
    table = [changed if phase.kind == changed.kind else phase for phase in phases.TABLE]
    monkeypatch.setattr(phases, "TABLE", tuple(table))
    with pytest.raises(ToolchainError, match=complaint):
        nvrtc.compile_kernel(fit(), "sm_90", cache=tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_matrices_lie_in_the_order_of_their_phases(model: str) -> None:
    """The order holds within each pass; heads lie behind all layers of the predictor."""
    shape = fit(model)
    places = {matrix.name: place for place, matrix in enumerate(stream(shape))}
    launch = Launch("decode", tuple(Row(slot, 0) for slot in range(shapes.ROWS)))
    seen = set()
    last = -1
    for phase in schedule(shape, launch):
        if shape.extent(phase.type, phase.stack) is None:
            continue
        name = {
            "project": "projection",
            "head": "talker.head" if phase.stack == "talker" else f"predictor.head.{phase.position}",
        }.get(phase.type.kind, f"{phase.stack}.{phase.layer}.{phase.type.kind}")
        seen.add(name)
        first = phase.layer == 0 and phase.type == LAYER[0]
        assert first or places[name] > last, name
        last = places[name]
    assert seen == places.keys()


@pytest.mark.parametrize("model", MODELS)
def test_the_longest_launch_has_a_number_for_each_phase(model: str) -> None:
    shape = fit(model)
    rows = tuple(Row(slot, constants.CHUNK) for slot in range(shapes.ROWS))
    launches = [Launch(mode, rows, wide=True) for mode in ("decode", "prefill")] + [Launch("decode", rows)]
    count = max(sum(1 for _ in schedule(shape, launch)) for launch in launches)
    assert 1 + count <= shape.max_phases <= 3 + count
