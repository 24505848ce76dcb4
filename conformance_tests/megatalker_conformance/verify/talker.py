"""Codes and logits of the talker backend, held to the official modules."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from megatalker.cli.verify.card import Check
from megatalker.plugins.device import dtype_name
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker_conformance.cases import LAYOUTS, SENTENCES
from megatalker_conformance.official import Official
from megatalker_conformance.precision import (
    FLOAT32_ERROR,
    Bound,
    first_divergence,
    rounded_bounds,
    row_errors,
    sixteen_bit_bounds,
)
from megatalker_conformance.streams import GREEDY, PLAIN_GREEDY, Codes, StreamCase, SuiteStreams
from megatalker_conformance.ties import float32_margin, sixteen_bit_margin
from megatalker_conformance.verify.subject import NotRunError, VerifySubject

SEED = 1


def codes(subject: VerifySubject) -> Iterator[Check]:
    """Free-running in float32, every mode; where codes part, at a near-tie or not; and the error of logits."""
    subject.require_official()
    frames = subject.order.frames
    greedy = replace(GREEDY, min_new_tokens=frames)
    with subject.streams(torch.float32) as streams:
        bits = streams.decoder.capabilities.weight_bits
        if bits is not None:
            yield from _rounded(subject, streams, bits)
            return
        for mode in subject.modes:
            if mode.spoken:
                case = subject.cases.prompt(
                    SENTENCES[0],
                    "interleaved",
                    greedy,
                    voice=mode.voice,
                    language=mode.language,
                    instruct=mode.instruct,
                )
                yield _compared(subject, mode.name, case, streams, subject.oracle.codes(case, frames))
        if streams.decoder.capabilities.seeded_sampling:
            case = subject.cases.prompt(SENTENCES[0], "upfront", SamplingParams(seed=SEED, min_new_tokens=frames))
            yield _compared(subject, f"sampled, seed {SEED}", case, streams, subject.oracle.codes(case, frames))
        official = Official(subject.checkpoint, subject.device)
        for layout in LAYOUTS:
            case = subject.cases.prompt(SENTENCES[0], layout, GREEDY)
            expected = official.codes(SENTENCES[0], layout, frames)
            yield _compared(subject, f"the official generate(), {layout}", case, streams, expected)
        if not streams.decoder.capabilities.forced_codes:
            raise NotRunError(f"{subject.talker_backend.name} takes no forced codes: no logits to compare")
        case = subject.cases.prompt(SENTENCES[0], "interleaved", greedy)
        yield _float32_error(subject, case, streams)


def sixteen_bit(subject: VerifySubject) -> Iterator[Check]:
    """Errors of logits along the official codes, at most 1.5 times those of the official modules in the same type."""
    subject.require_official()
    dtype = _sixteen_bit_type(subject)
    frames = subject.order.frames
    with subject.streams(dtype) as streams:
        if streams.decoder.capabilities.weight_bits is not None:
            raise NotRunError("the weights are rounded, whatever the type; the part 'codes' judges them")
        for layout in LAYOUTS:
            case = subject.cases.prompt(SENTENCES[0], layout, replace(PLAIN_GREEDY, min_new_tokens=frames))
            yield _parting(subject, f"{dtype_name(dtype)} codes, {layout}", case, streams, dtype)
            if not streams.decoder.capabilities.forced_codes:
                continue
            expected = subject.oracle.codes(case, frames)
            exact, official = subject.oracle.logits(case, expected), subject.oracle.logits(case, expected, dtype)
            for bound in sixteen_bit_bounds(streams.force(case, expected), official, exact):
                yield _bounded("16-bit", f"{bound.name}, {layout}", bound)
        if not streams.decoder.capabilities.forced_codes:
            raise NotRunError(f"{subject.talker_backend.name} takes no forced codes: no logits to compare")


def _rounded(subject: VerifySubject, streams: SuiteStreams, bits: int) -> Iterator[Check]:
    """Errors of logits from rounded weights, in units of the official bfloat16 error, and choices that differ."""
    frames = subject.order.frames
    if not streams.decoder.capabilities.forced_codes:
        raise NotRunError(f"{subject.talker_backend.name} takes no forced codes: no logits to compare")
    for layout in LAYOUTS:
        case = subject.cases.prompt(SENTENCES[0], layout, replace(PLAIN_GREEDY, min_new_tokens=frames))
        expected = subject.oracle.codes(case, frames)
        exact, official = (subject.oracle.logits(case, expected, dtype) for dtype in (torch.float32, torch.bfloat16))
        for bound in rounded_bounds(streams.force(case, expected), official, exact, bits):
            yield _bounded("codes", f"{bound.name}, {bits} bits, {layout}", bound)


def _bounded(part: str, name: str, bound: Bound) -> Check:
    figures = {"value": bound.value, "limit": bound.limit, "official": bound.official}
    found = f"{bound.value:.3g} (at most {bound.limit:.3g}; the official modules: {bound.official:.3g})"
    return Check(part, name, "passed" if bound.held else "failed", found, figures)


def _sixteen_bit_type(subject: VerifySubject) -> torch.dtype:
    """Return the 16-bit type of the settings, or else the one that the backend has."""
    known = subject.talker_backend.capabilities.dtypes
    for dtype in (subject.dtype, torch.bfloat16, torch.float16):
        if dtype in known and dtype != torch.float32:
            return dtype
    raise NotRunError(f"{subject.talker_backend.name} computes in float32 only")


def _compared(
    subject: VerifySubject, name: str, case: StreamCase, streams: SuiteStreams, expected: Sequence[Codes]
) -> Check:
    found = streams.say(case, subject.order.frames)
    divergence = first_divergence(found, expected)
    if divergence is None:
        return Check("codes", name, "passed", f"equal in float32: all codes of {len(found)} frames")
    vocabulary = CodeVocabulary.from_config(subject.checkpoint.config)
    margin = float32_margin(subject.oracle, case, expected, divergence, vocabulary)
    text = f"equal for {divergence.frame} frames, then parts at {divergence}, {margin}"
    figures = {"apart": margin.apart, "tie": margin.tie}
    return Check("codes", name, "passed" if margin.near else "failed", text, figures)


def _parting(subject: VerifySubject, name: str, case: StreamCase, streams: SuiteStreams, dtype: torch.dtype) -> Check:
    frames, eos_id = subject.order.frames, subject.checkpoint.config.codec_eos_id
    divergence = first_divergence(streams.say(case, frames), subject.oracle.codes(case, frames))
    if divergence is None:
        return Check("16-bit", name, "passed", f"equal to those of float32: {frames} frames")
    margin = sixteen_bit_margin(subject.oracle, case, frames, divergence, dtype, eos_id)
    text = f"part from those of float32 at {divergence}, {margin}"
    figures = {"apart": margin.apart, "tie": margin.tie}
    return Check("16-bit", name, "passed" if margin.near else "failed", text, figures)


def _float32_error(subject: VerifySubject, case: StreamCase, streams: SuiteStreams) -> Check:
    expected = subject.oracle.codes(case, subject.order.frames)
    worst = float(row_errors(streams.force(case, expected), subject.oracle.logits(case, expected)).max())
    found = f"{worst:.3g} of their size at worst (at most {FLOAT32_ERROR:g})"
    figures = {"value": worst, "limit": FLOAT32_ERROR}
    return Check("codes", "errors of logits", "passed" if worst <= FLOAT32_ERROR else "failed", found, figures)
