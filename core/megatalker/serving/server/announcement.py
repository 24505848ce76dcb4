"""Zeroconf (mDNS): the server tells the network where Wyoming's clients find it, and Home Assistant offers it."""

import logging
import socket
import threading
from ipaddress import ip_address

import ifaddr
from zeroconf import Error as ZeroconfError
from zeroconf import InterfaceChoice, ServiceInfo, Zeroconf

from megatalker.serving.background import start_thread

logger = logging.getLogger(__name__)

SERVICE = "_wyoming._tcp.local."
LONGEST_NAME = 32
"""Characters of the machine's name that are told: a service's name may have 63."""


class Announcement:
    """Announces an address until it is closed. What the network does not allow is logged, and harms nothing.

    Args:
        bound: on which Wyoming's clients are served.
    """

    def __init__(self, bound: socket.socket) -> None:
        self._host, self._port = bound.getsockname()[:2]
        self._zeroconf: Zeroconf | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Announce it in a thread: to ask whether the name is taken lasts more than a second."""
        self._thread = start_thread(self._register, "megatalker-announcement")

    def close(self) -> None:
        """Take it back."""
        if self._thread is not None:
            self._thread.join()
        if self._zeroconf is not None:
            self._zeroconf.close()

    def _register(self) -> None:
        try:
            name = self._announce()
        except (OSError, ZeroconfError) as error:
            logger.warning("the server cannot be announced by zeroconf: %r; enter its address by hand", error)
        else:
            logger.info("announced by zeroconf as %r", name)

    def _announce(self) -> str:
        """Return the name under which it is announced."""
        everywhere = ip_address(self._host).is_unspecified
        self._zeroconf = Zeroconf(InterfaceChoice.All if everywhere else [self._host])
        info = ServiceInfo(
            SERVICE,
            f"megatalker on {socket.gethostname()[:LONGEST_NAME]}, port {self._port}.{SERVICE}",
            port=self._port,
            parsed_addresses=_addresses() if everywhere else [self._host],
        )
        self._zeroconf.register_service(info, allow_name_change=True)
        return info.name.removesuffix("." + SERVICE)


def _addresses() -> list[str]:
    """Return this machine's addresses that others can reach."""
    here = [str(one.ip) for adapter in ifaddr.get_adapters() for one in adapter.ips if one.is_IPv4]
    return sorted(address for address in here if not ip_address(address).is_loopback)
