"""torch.compile for the units of a frame, one piece of code for each batch size."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from types import FunctionType
from typing import Any, Literal, cast

import torch

from megatalker.errors import SettingsError
from megatalker_backends.compiled.model import PLAIN, Model, Units
from megatalker_backends.compiled.runner import DirectRunner, idle_shares
from megatalker_backends.compiled.stack import Step
from megatalker_backends.compiler import CompilerError, compiler_errors, missing_compiler

logger = logging.getLogger(__name__)


def wants_compile(setting: Literal["auto", "on", "off"], device: torch.device) -> bool:
    """Resolve the ``compile`` setting; logs when ``auto`` finds no compiler.

    Raises:
        SettingsError: ``on``, and there is no compiler for this device.
    """
    if setting == "off":
        return False
    missing = missing_compiler(device)
    if missing is not None:
        _go_without(setting, missing)
    return missing is None


def units_to_run(setting: Literal["auto", "on", "off"], model: Model, batch_sizes: Iterable[int]) -> dict[int, Units]:
    """Compiled units for each batch size, or none where ``auto`` cannot compile them, which the log then says.

    Raises:
        SettingsError: ``on``, and they cannot be compiled.
    """
    try:
        with compiler_errors():
            return compile_units(model, batch_sizes)
    except CompilerError as error:
        _go_without(setting, error)
        return {}


def _go_without(setting: Literal["auto", "on", "off"], reason: object) -> None:
    key = "backends.compiled.compile"
    if setting == "on":
        raise SettingsError(f"{key} is 'on', but {reason}; mend that, or set {key} to 'auto' or 'off'")
    logger.warning(
        "%s is 'auto', and %s; steps run as plain torch operations, several times slower. 'off' hides this", key, reason
    )


def compile_units(model: Model, batch_sizes: Iterable[int]) -> dict[int, Units]:
    """Compile the units for each batch size."""
    compiled = {}
    sizes = list(batch_sizes)
    for done, size in enumerate(sizes, 1):
        logger.info("compiled: warming up %d of %d: frames of %d streams", done, len(sizes), size)
        *_, compiled[size] = compile_piecewise(model, size)
    return compiled


def compile_piecewise(model: Model, size: int) -> Iterator[Units]:
    """Compile one unit after another, by running each once on the scratch row, after the ones before it; the last that
    comes is complete.
    """
    units = PLAIN
    for field in fields(Units):
        unit = _compiled(getattr(PLAIN, field.name), model.device)
        learning = _any_length(unit) if field.name == "step_layers" else unit
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # Inductor, of its own choice
            runner = DirectRunner(model, {size: replace(units, **{field.name: learning})})
            runner.run(idle_shares(model, size))
        units = replace(units, **{field.name: unit})
        yield units


def _compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    # torch keeps compiled code with the code object. With one of its own, a unit has exactly one compiled form: nothing
    # needs to be looked up or checked at each call, and decoders of one process do not fill each other's cache.
    original = cast("FunctionType", function)
    own = FunctionType(original.__code__.replace(), original.__globals__, original.__name__)
    options: dict[str, str | int | bool | Callable[..., Any]] = {"guard_filter_fn": _no_guards}
    if device.type == "cpu":
        # The Python that inductor would put around its kernels takes longer than the kernels of a small model, and so
        # does waking up threads for each loop; large matrices go to the library, which has its own threads.
        options |= {"cpp_wrapper": True, "cpp.threads": 1}
    return torch.compile(own, fullgraph=True, dynamic=False, options=options)


def _no_guards(guards: Sequence[Any]) -> Sequence[bool]:
    return [False] * len(guards)


def _any_length(step_layers: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the compiler know that the looked-at part of the cache varies in length."""

    def call(*args: Any) -> Any:
        step = next(argument for argument in args if isinstance(argument, Step))
        torch._dynamo.mark_dynamic(step.span, 0)
        return step_layers(*args)

    return call
