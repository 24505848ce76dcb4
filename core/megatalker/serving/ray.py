"""Several replicas of the server behind one address, on Ray Serve: ``serve run megatalker.serving.ray:application``.

Each replica is a process with an engine of its own, on its own GPU, and serves the application of ``megatalker serve``
whole. Needs the extra ``ray``; docs/deployment.md tells how to operate it.
"""

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import SecretStr

from megatalker.checkpoint import Checkpoint
from megatalker.errors import SettingsError, UnsupportedError
from megatalker.serving.ray_scaling import LOAD
from megatalker.serving.server.app import create_app
from megatalker.serving.server.defaults import served_settings
from megatalker.serving.server.lazy_engine import LazyEngine
from megatalker.serving.server.logs import configure_logging
from megatalker.serving.server.speech_service import SpeechService
from megatalker.settings import RaySettings, Settings

try:
    from ray import serve
except ImportError as error:
    raise UnsupportedError(f"cannot deploy on Ray: {error.name} is missing; pip install 'megatalker[ray]'") from error

NAME = "megatalker"
"""The name of the deployment in Ray's commands and files."""
HEALTH_PERIOD_S = 2.0
"""Time between two looks at a replica; a dead one is noticed after it at the latest."""
DRAIN_POLL_S = 0.2
OF_THE_PROXY = (
    "host",
    "port",
    "trusted_proxies",
    "request_timeout_s",
    "tls_certificate",
    "tls_key",
    "tls_key_password",
)


def application(args: dict[str, Any]) -> serve.Application:
    """Return what Ray Serve deploys. The settings are read once, here, and hold for every replica.

    Args:
        args: settings by name, on top of the environment and ``megatalker.toml``; ``config`` names another file.

    Raises:
        SettingsError: as :meth:`Settings.read`; or a setting that Ray, and not the server, decides about.
    """
    config = args.get("config")
    given = {name: value for name, value in args.items() if name != "config"}
    settings = served_settings(Settings.read(None if config is None else Path(config), **given))
    _refuse_what_ray_decides(settings)
    # A token that one replica gave opens the others.
    secret = settings.server.token_secret or SecretStr(secrets.token_urlsafe(32))
    own = settings.server.model_copy(update={"token_secret": secret})
    # Of this class, and not of the one that read a file: a replica finds it by its name.
    sent = Settings.model_construct(**dict(settings) | {"server": own})
    return serve.deployment(serve.ingress()(Replica), **_options(settings)).bind(sent)


class Replica:
    """One process with one engine; serves once it is warm.

    Args:
        settings: the same for all.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._service: SpeechService

    async def __serve_build_asgi_app__(self) -> FastAPI:  # Ray's name for it
        settings = self._settings
        configure_logging(settings.server.log_format)
        logging.getLogger("megatalker").setLevel(logging.INFO)
        checkpoint = await asyncio.to_thread(Checkpoint.open, settings.checkpoint)
        app = create_app(LazyEngine(settings, checkpoint), settings.server)
        self._service = app.state.service
        return app

    async def check_health(self) -> None:
        """Ray asks once before it sends requests, which waits for the warm-up, and then all the time.

        Raises:
            MegatalkerError: the engine has failed for good; Ray replaces the replica.
        """
        await self._service.warm_up_over()
        if self._service.failure is not None:
            raise self._service.failure

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return streams that run or wait, as a share of those that should run."""
        metrics, most = self._service.engine.metrics(), self._settings.max_streams
        if metrics.sustainable is not None:
            most = min(most, metrics.sustainable)
        return {LOAD: (metrics.active + metrics.waiting) / (most * self._settings.ray.target_load)}


def _options(settings: Settings) -> dict[str, Any]:
    """Return options of the deployment, as Ray names them; a Serve configuration file may say otherwise."""
    server, wanted = settings.server, settings.ray
    options: dict[str, Any] = {
        "name": NAME,
        "max_ongoing_requests": server.max_connections,
        "graceful_shutdown_timeout_s": server.drain_timeout_s + server.shutdown_timeout_s,
        "graceful_shutdown_wait_loop_s": DRAIN_POLL_S,
        "health_check_period_s": HEALTH_PERIOD_S,
        "ray_actor_options": {"num_cpus": wanted.cpus, "num_gpus": _gpus(settings.device, wanted)},
    }
    if wanted.max_replicas is None:
        return options | {"num_replicas": wanted.replicas}
    scaling = {
        "min_replicas": wanted.replicas,
        "max_replicas": wanted.max_replicas,
        "policy": {"policy_function": "megatalker.serving.ray_scaling:replicas_wanted"},
    }
    return options | {"autoscaling_config": scaling}


def _gpus(device: str, wanted: RaySettings) -> float:
    return float(device == "cuda") if wanted.gpus is None else wanted.gpus


def _refuse_what_ray_decides(settings: Settings) -> None:
    said = [name for name in OF_THE_PROXY if name in settings.server.model_fields_set]
    if said:
        raise SettingsError(
            f"on Ray, Serve's proxy takes the connections: server.{', server.'.join(said)} would have no effect; leave "
            "it out, and set http_options in Serve's configuration"
        )
    if settings.device not in ("cpu", "cuda"):
        raise SettingsError(
            f"device is {settings.device!r}, but Ray needs to know whether a replica takes a GPU, and chooses which; "
            "expected 'cpu' or 'cuda'"
        )
    if settings.ray.max_replicas is not None and settings.ray.max_replicas < settings.ray.replicas:
        raise SettingsError(
            f"ray.max_replicas is {settings.ray.max_replicas}, expected at least ray.replicas, {settings.ray.replicas}"
        )
