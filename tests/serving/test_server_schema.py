"""Requests made up from ``/openapi.json``, right ones and wrong ones: the server answers each as the schema says."""

from collections.abc import Iterator
from importlib import metadata

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from megatalker.checkpoint import Checkpoint
from serving import Served, serving

EXAMPLES = 30
"""Number of valid and of invalid requests for every operation."""
load_all_checks()
CHECKED = [
    check for check in CHECKS.get_all() if check.__name__ != "positive_data_acceptance"
]  # names must be known, too
KEY = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def served(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, server={"api_key": "secret", "strict": True}, max_frames=40) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode)
def test_every_operation_keeps_to_its_schema(served: Served, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(served.url + "/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/audio/speech", "/v1/models/{name}", "/health"}
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or list(operation.iter_parameters())):
            continue  # there is no wrong way to ask

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(headers=KEY, checks=CHECKED)

        ask()


def test_server_sent_events_keep_to_their_schema(served: Served) -> None:
    schema = schemathesis.openapi.from_url(served.url + "/openapi.json")
    case = schema["/v1/audio/speech"]["POST"].Case(body={"input": "Hello.", "stream_format": "sse"})
    answer = case.call_and_validate(headers=KEY, checks=CHECKED)
    assert answer.headers["content-type"] == ["text/event-stream; charset=utf-8"]


def test_it_tells_the_version_and_groups_routes_by_what_they_are_for(served: Served) -> None:
    schema = httpx.get(served.url + "/openapi.json", headers=KEY).json()
    assert schema["info"] == {"title": "megatalker", "version": metadata.version("megatalker")}
    tags = {tag["name"] for tag in schema["tags"]}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert set(operation["tags"]) <= tags, path
            assert len(operation["summary"].split()) > 2, f"{method} {path}: {operation['summary']!r} says nothing"
    assert schema["paths"]["/v1/audio/speech"]["post"]["tags"] == ["speech"]
    assert schema["paths"]["/metrics"]["get"]["tags"] == ["operation"]
