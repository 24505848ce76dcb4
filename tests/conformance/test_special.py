"""Special checkpoints that a backend refuses are skipped with its reason; other errors are its own."""

from collections.abc import Callable

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendUnavailableError, UnsupportedError
from megatalker.interfaces import API_VERSION, AVAILABLE, Availability, TalkerBackend, TalkerCapabilities
from megatalker.settings import Settings
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_conformance.special import load_or_skip

CAPABILITIES = TalkerCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}))


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Availability, BaseException | None], str]:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "odd", TINY))

    def attempt(probed: Availability, error: BaseException | None) -> str:
        def load() -> str:
            if error is not None:
                raise error
            return "loaded"

        spec = TalkerBackend(
            name="one",
            summary="",
            api_version=API_VERSION,
            capabilities=CAPABILITIES,
            probe=lambda *_: probed,
            load=lambda *_: pytest.fail("load_or_skip was given another"),
        )
        return load_or_skip(spec, checkpoint, torch.device("cpu"), Settings(dtype="float32"), load)

    return attempt


def test_what_the_backend_can_run_is_loaded(attempt: Callable[..., str]) -> None:
    assert attempt(AVAILABLE, None) == "loaded"


@pytest.mark.parametrize(
    ("probed", "error"),
    [
        (Availability("it has 16 heads"), None),
        (AVAILABLE, BackendUnavailableError("it has 16 heads")),
        (AVAILABLE, UnsupportedError("it has 16 heads")),
    ],
    ids=["probed", "unavailable", "unsupported"],
)
def test_what_it_refuses_is_skipped_with_its_reason(
    attempt: Callable[..., str], probed: Availability, error: Exception | None
) -> None:
    with pytest.raises(pytest.skip.Exception, match="cannot run the checkpoint 'odd': it has 16 heads"):
        attempt(probed, error)


def test_what_goes_wrong_otherwise_is_not_skipped(attempt: Callable[..., str]) -> None:
    with pytest.raises(KeyError):
        attempt(AVAILABLE, KeyError("talker.code_predictor.lm_head.14.weight"))
