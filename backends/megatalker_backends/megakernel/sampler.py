"""The sampling parameters of a stream as the kernel reads them."""

from functools import lru_cache

from megatalker.sampling import SamplingParams
from megatalker_kernels.params import Sampling, sampling, sampling_filter

_filter = lru_cache(64)(sampling_filter)


def kernel_sampling(params: SamplingParams) -> Sampling:
    """The same parameters in the kernel's structure."""
    talker = _filter(do_sample=params.do_sample, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    predictor = _filter(
        do_sample=params.predictor_do_sample,
        temperature=params.predictor_temperature,
        top_k=params.predictor_top_k,
        top_p=params.predictor_top_p,
    )
    return sampling(
        talker, predictor, seed=params.seed, penalty=params.repetition_penalty, min_frames=params.min_new_tokens
    )
