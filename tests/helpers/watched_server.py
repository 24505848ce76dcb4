"""Parts that a server in this process holds, for benchmarks that watch a server."""

import asyncio
from dataclasses import dataclass

import psutil

from serving import Served


@dataclass
class WatchedServer:
    """A server whose own tasks and connections count; what else the tests hold does not."""

    served: Served

    @property
    def url(self) -> str:
        return self.served.url

    def tasks(self) -> int:
        return len(asyncio.all_tasks(self.served.server.servers[0].get_loop()))

    def descriptors(self) -> int:
        return len(self.served.server.server_state.connections)

    def memory_mib(self) -> float:
        return psutil.Process().memory_info().rss / 2**20
