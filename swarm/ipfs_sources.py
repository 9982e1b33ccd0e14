"""Which kind of source an address of IPFS is: a node's own RPC, or a trustless gateway."""

from __future__ import annotations

from swarm.ipfs_fetch import Gateway
from swarm.ipfs_rpc import IpfsNode

RPC_PATH = "/api/v0"
ASK_S = 30.0  # a node that says nothing for so long is given up: here it is one source of several


def source_at(address: str) -> Gateway | IpfsNode:
    """The source at an address that the user of this machine has chosen; close it with `close`.

    Args:
        address: of a gateway, as `https://trustless-gateway.link`; of a node's RPC with its path, as
            `http://127.0.0.1:5001/api/v0`. Whoever reaches that owns the node, so strangers name gateways only.

    Raises:
        HocketError: OPTION_INVALID for an address that is none; EXTRA_MISSING if the HTTP client is not there.
    """
    whole = address.rstrip("/")
    if whole.endswith(RPC_PATH):
        return IpfsNode(whole.removesuffix(RPC_PATH), silence_s=ASK_S)
    return Gateway(address)
