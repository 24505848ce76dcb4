"""The address of a server: its socket, its URL, and the hosts that a server on the loopback interface answers for."""

import socket
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit

from megatalker.errors import SettingsError, UnsupportedError
from megatalker.settings import ServerSettings

LOOPBACK_HOSTS = ("localhost", "localhost.", "127.0.0.1", "::1")


def bind(settings: ServerSettings) -> socket.socket:
    """Return a socket on the address to serve. It listens: while two sockets only hold an address, neither is refused.

    Raises:
        SettingsError: the address cannot be used.
    """
    return _listening(settings.host, settings.port)


def bind_wyoming(settings: ServerSettings) -> socket.socket | None:
    """Return a socket on the address of ``server.wyoming``, as :func:`bind`; ``None`` where there is none.

    Raises:
        SettingsError: the address cannot be used, or is to be announced and is not there.
        UnsupportedError: a package is missing.
    """
    if settings.wyoming is None:
        if settings.announce:
            raise SettingsError("server.announce tells of server.wyoming, which is not set; set it, too")
        return None
    for name, package in (("wyoming", "wyoming"), *([("announce", "zeroconf")] if settings.announce else [])):
        if find_spec(package) is None:
            raise UnsupportedError(f"server.{name} needs the package {package!r}; pip install 'megatalker[wyoming]'")
    parts = urlsplit(settings.wyoming)
    assert parts.hostname is not None, "the setting was checked"
    assert parts.port is not None, "the setting was checked"
    return _listening(parts.hostname, parts.port)


def wyoming_url(bound: socket.socket) -> str:
    """Return the address of the socket in the words of Wyoming's clients."""
    host, port = bound.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()
    except (OSError, ValueError) as error:  # ValueError: no host at all, such as one with a NUL or a very long label
        bound.close()
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise SettingsError(f"cannot serve on host {host!r}, port {port}: {why}; choose another") from error
    return bound


def guard_loopback(settings: ServerSettings, address: str) -> ServerSettings:
    """Return the settings; those of a server at the loopback ``address`` without keys limit the hosts it answers for.

    Nobody but this machine's programs should reach such a server. But a web page can have its own name resolve to
    127.0.0.1 (DNS rebinding), and a browser then lets it ask; the ``Host`` header tells.
    """
    keyed = settings.api_key is not None or settings.keys
    if keyed or settings.allowed_hosts or not ip_address(address.partition("%")[0]).is_loopback:
        return settings
    return settings.model_copy(update={"allowed_hosts": (*LOOPBACK_HOSTS, settings.host, address)})


def server_url(settings: ServerSettings, bound: socket.socket) -> str:
    """Return the URL of the server that listens there."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
