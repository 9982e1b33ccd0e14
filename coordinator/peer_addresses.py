"""Where the coordinator's bootstrap peer listens and what it announces, as multiaddresses; `host:port` in the run file."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from coordinator.run_config import NetworkSection
from protocol.ticket import split_address


def listen_multiaddr(network: NetworkSection, earlier: Sequence[str]) -> str:
    """Where the bootstrap peer listens.

    Args:
        network: of the run file. Without `peer_listen` the host is that of `listen`, and the port any at the first start, then
            the one that tickets name.
        earlier: the peer's multiaddresses at the last start; empty: there was none.
    """
    if network.peer_listen:
        host, _, port = network.peer_listen.rpartition(":")
        return _prefix(host.strip("[]")) + port
    ports = [part.split("/")[4] for part in earlier if len(part.split("/")) > 4]
    return _prefix(network.host) + (ports[0] if ports else "0")


def announced_multiaddrs(network: NetworkSection) -> list[str]:
    """What the bootstrap peer announces in place of what it listens on; a name stays a name, which whoever dials looks up."""
    return [_multiaddr(*split_address(address)) for address in network.peer_advertise]


def _multiaddr(host: str, port: int) -> str:
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}"
    except ValueError:
        return f"/dns/{host}/tcp/{port}"


def _prefix(host: str) -> str:
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        number = ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    return f"/ip{number.version}/{number}/tcp/"
