"""The sampling contract; :mod:`megatalker.sampling.sampler` states it."""

from megatalker.sampling.sampler import CodeVocabulary, SamplerRows, SamplingParams

__all__ = ["CodeVocabulary", "SamplerRows", "SamplingParams"]
