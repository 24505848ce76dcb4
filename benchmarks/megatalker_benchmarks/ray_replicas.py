"""Kills one of two replicas on Ray Serve while all speak, then drains the others: ``megatalker bench ray --help``.

Needs the extra ``ray``, and processes on this machine only: everything listens on the loopback interface.
"""

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.playback import Playback
from megatalker.errors import ConnectionFailedError, MegatalkerError
from megatalker.sampling import SamplingParams
from megatalker.serving.client import RemoteEngine
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole

REPLICAS = 2
AHEAD_S = 1.0
"""Speech is made as it is played, so that all are still speaking when the replica is killed."""
KILL_AFTER_S = 2.0
"""Seconds of speech that every client has heard by then."""
PATIENCE_S = 180.0
"""Seconds to wait for an event."""
FRAMES_OF_A_TRY = 12
HOST = "127.0.0.1"
NODE = "127.0.0.2"
"""Address where Ray's own processes listen: Ray replaces 127.0.0.1 by an address of the network."""


@dataclass
class ReplicaClient:
    """A client with a connection of its own, as a caller has."""

    url: str
    number: int
    frames: int
    codes: list[list[int]] = field(default_factory=list)
    player: Playback = field(default_factory=lambda: Playback(time.monotonic()))
    broken: bool = False

    def listen(self) -> None:
        """Listen to one utterance to its end, or until the connection breaks."""
        sampling = SamplingParams(min_new_tokens=self.frames)
        with RemoteEngine(self.url) as engine:
            stream = engine.speak(
                "Every word of this is said by one of the replicas.",
                seed=self.number,
                sampling=sampling,
                max_frames=self.frames,
                max_ahead_s=AHEAD_S,
                return_codes=True,
            )
            self.player.requested_at = time.monotonic()
            try:
                for chunk in stream:
                    assert chunk.codes is not None
                    self.codes += chunk.codes.tolist()
                    self.player.take(chunk.pcm, time.monotonic())
            except ConnectionFailedError:
                self.broken = True


def eventually(true: Callable[[], bool], what: str) -> None:
    """Wait until ``true``; raise ``TimeoutError`` if that does not come."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {PATIENCE_S:g} s")
        time.sleep(0.02)


@contextmanager
def cluster() -> Iterator[str]:
    """Run Ray and Serve on this machine alone; yield the URL of Serve's proxy."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    with closing(socket.create_server((HOST, 0))) as free:
        port = free.getsockname()[1]
    # As many cores as it takes: replicas that wait for a core of a small machine would never start.
    ray.init(
        address="local", num_cpus=2 + REPLICAS, include_dashboard=False, log_to_driver=False, _node_ip_address=NODE
    )
    try:
        serve.start(http_options=HTTPOptions(host=HOST, port=port))
        yield f"http://{HOST}:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def replicas() -> dict[int, psutil.Process]:
    """Return this cluster's processes of replicas by their number, and no other's."""
    found = psutil.Process().children(recursive=True)
    return {process.pid: process for process in found if _name(process).startswith("ray::ServeReplica")}


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


def running() -> int:
    """Count the replicas that Serve calls running."""
    from ray import serve

    deployments = [one for app in serve.status().applications.values() for one in app.deployments.values()]
    return sum(one.replica_states.get("RUNNING", 0) for one in deployments)


def together(listeners: list[ReplicaClient]) -> list[threading.Thread]:
    """Start all clients at once."""
    threads = [threading.Thread(target=listener.listen) for listener in listeners]
    for thread in threads:
        thread.start()
    return threads


def heard_by_all(listeners: list[ReplicaClient]) -> bool:
    """Whether each client has heard enough for the kill to come amid its speech."""
    return all(listener.player.audio_s >= KILL_AFTER_S for listener in listeners)


def kill_one(url: str, streams: int, frames: int) -> dict[str, Any]:
    """Kill a replica under ``streams``, and wait until there are as many as before."""
    alone = [ReplicaClient(url, number, frames) for number in range(streams)]
    for listener in alone:
        listener.listen()
    crowd = [ReplicaClient(url, number, frames) for number in range(streams)]
    threads = together(crowd)
    eventually(lambda: heard_by_all(crowd), "speech of all")
    before = replicas()
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    tried: list[ReplicaClient] = []

    def answered() -> bool:
        tried.append(ReplicaClient(url, streams, FRAMES_OF_A_TRY))
        tried[-1].listen()
        return not tried[-1].broken

    eventually(answered, "an answer")
    first_at = tried[-1].player.first_at
    assert first_at is not None
    noticed_at: list[float] = []

    def whole() -> bool:
        if not noticed_at and running() < REPLICAS:
            noticed_at.append(time.monotonic())
        return len(replicas().keys() - before) == 1 and bool(noticed_at) and running() == REPLICAS

    eventually(whole, "a new replica")
    whole_at = time.monotonic()
    for thread in threads:
        thread.join()
    kept = [listener for listener in crowd if not listener.broken]
    again = [ReplicaClient(url, listener.number, frames) for listener in crowd if listener.broken]
    for thread in together(again):
        thread.join()
    return {
        "replicas": REPLICAS,
        "streams": streams,
        "seconds_of_speech_each": frames * FRAME_SECONDS,
        "streams_of_the_killed_replica": len(again),
        "streams_of_the_other": len(kept),
        "of_the_other_with_other_codes": sum(one.codes != alone[one.number].codes for one in kept),
        "underruns_of_the_other": sum(one.player.underruns for one in kept),
        "worst_gap_ms_of_the_other": max((one.player.worst_gap_s for one in kept), default=0.0) * 1e3,
        "asked_again_with_other_codes": sum(one.codes != alone[one.number].codes for one in again),
        "next_request_answered_after_s": first_at - killed_at,
        "next_request_tries": len(tried),
        "noticed_after_s": noticed_at[0] - killed_at,
        "whole_again_after_s": whole_at - killed_at,
    }


def drain(url: str, streams: int, frames: int) -> dict[str, Any]:
    """Delete the application while all clients listen."""
    from ray import serve

    from megatalker.serving.ray import NAME

    crowd = [ReplicaClient(url, number, frames) for number in range(streams)]
    threads = together(crowd)
    eventually(lambda: heard_by_all(crowd), "speech of all")
    began = time.monotonic()
    serve.delete(NAME)
    took = time.monotonic() - began
    for thread in threads:
        thread.join()
    finished = sum(len(listener.codes) == frames and not listener.broken for listener in crowd)
    return {"streams": streams, "finished": finished, "gone_after_s": took}


@contextmanager
def deployed(**settings: Any) -> Iterator[str]:
    """Deploy replicas that are ready to speak on a processor; yield the URL."""
    from ray import serve

    from megatalker.serving.ray import NAME, application

    with cluster() as url:
        wanted = {"device": "cpu", "ray": {"replicas": REPLICAS}} | settings
        serve.run(application(wanted), name=NAME, route_prefix="/")
        yield url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--streams", type=whole(), default=8, help="at once, over both replicas")
    parser.add_argument("--seconds", type=number(), default=8.0, help="of speech of each")
    add_json_option(parser)
    options = parser.parse_args()
    frames = round(options.seconds / FRAME_SECONDS)
    try:
        began = time.monotonic()
        with deployed(checkpoint=options.checkpoint, backend=options.backend) as url:
            found = {
                "replicas_ready_after_s": time.monotonic() - began,
                "killed": kill_one(url, options.streams, frames),
                "drained": drain(url, options.streams, frames),
            }
    except MegatalkerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    hand_out(found, options.json)
    killed, drained = found["killed"], found["drained"]
    undisturbed = killed["of_the_other_with_other_codes"] == 0 and killed["streams_of_the_other"] > 0
    return 0 if undisturbed and drained["finished"] == drained["streams"] else 1


if __name__ == "__main__":
    sys.exit(main())
