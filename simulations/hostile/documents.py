"""Readers of what is signed: tickets, messages, manifests, records of the DHT."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from node.wire import parse_signed
from protocol import content
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.manifest import (
    DatasetManifest,
    ShardEntry,
    StageFile,
    TensorEntry,
    VersionManifest,
    read_manifest,
    refuse_older,
    sign_document,
    sign_manifest,
)
from protocol.messages import make_signed, open_signed
from protocol.ticket import PREFIX, Ticket
from simulations.hostile.inputs import NOW_MS, RUN, Make, Reader, blind_maker, message_maker, odd_json
from simulations.hostile.mutations import blind, structured
from swarm.records import check_record, make_record
from swarm.whereabouts import check_whereabouts, make_whereabouts


def _ticket(key: MemberKey) -> list[Reader]:
    ticket = Ticket(RUN, ("127.0.0.1:5000",), key.public, bytes(32), ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooW",), "secret")
    line = ticket.encode()
    raw = base64.b32decode(line.removeprefix(PREFIX).upper() + "=" * (-len(line.removeprefix(PREFIX)) % 8))[:-4]
    parsed = pb.Ticket.FromString(raw)
    changed = message_maker(parsed)

    def with_checksum(draw: random.Random) -> tuple[str, bytes]:
        name, data = changed(draw)
        checksum = hashlib.sha256(PREFIX.encode() + data).digest()[:4]
        return name, (PREFIX + base64.b32encode(data + checksum).decode().rstrip("=").lower()).encode()

    def read(data: bytes) -> object:
        return Ticket.decode(data.decode("utf-8", errors="replace"))

    return [Reader("ticket", blind_maker(line.encode()), read), Reader("ticket, its checksum right", with_checksum, read)]


def _signed(key: MemberKey) -> list[Reader]:
    def message(payload: Message | bytes, **changes: Any) -> pb.Signed:
        fields: dict[str, Any] = {"method": "watch", "run_id": RUN, "receiver": key.member_id, "now_ms": NOW_MS}
        return make_signed(key, payload=payload, **{**fields, **changes})

    good = message(pb.WatchRequest(known_revision=3))

    def other(draw: random.Random) -> tuple[str, bytes]:
        """Signed well, for something else, or with other bytes under the signature."""
        ways: list[tuple[str, Callable[[], pb.Signed]]] = [
            ("another method", lambda: message(b"", method="join")),
            ("another run", lambda: message(b"", run_id=draw.choice(("", "other", RUN + " ")))),
            ("another receiver", lambda: message(b"", receiver=draw.choice(("", "00" * 32)))),
            ("another time", lambda: message(b"", now_ms=NOW_MS + draw.choice((-(2**62), -90_000, 90_000, 2**62)))),
            ("another payload", lambda: pb.Signed(header=good.header, payload=b"x", signature=good.signature)),
            ("another header", lambda: pb.Signed(header=message(b"").header, payload=good.payload, signature=good.signature)),
            ("a weak key", lambda: _by_weak_key(draw, good)),
            ("a long header", lambda: pb.Signed(header=good.header + b"\x7a\x88\x27" + bytes(5000), signature=bytes(64))),
        ]  # fmt: skip
        name, make = draw.choice(ways)
        return name, make().SerializeToString()

    def read(data: bytes) -> object:
        return open_signed(
            parse_signed(data), method="watch", run_id=RUN, receiver=key.member_id, now_ms=NOW_MS, nonces=None
        )

    return [Reader("signed message", message_maker(good), read), Reader("signed for something else", other, read, strict=True)]


def _by_weak_key(draw: random.Random, good: pb.Signed) -> pb.Signed:
    """Under a key of small order a signature of zeros would fit any message."""
    header = pb.SignedHeader.FromString(good.header)
    header.public_key = draw.choice((b"\x01" + bytes(31), bytes(32), b"\xec" + b"\xff" * 30 + b"\x7f", b"\xff" * 32))
    return pb.Signed(header=header.SerializeToString(), payload=good.payload, signature=header.public_key + bytes(32))


def version_manifest() -> VersionManifest:
    """A manifest of a version of one small stage."""
    cid = content.cid_of(b"a stage")
    stage = StageFile(
        stage=0, cid=cid, sha256="0" * 64, size_bytes=80, tensors=[TensorEntry(name="w", dtype="float32", shape=[2, 3])]
    )
    return VersionManifest(
        run_id=RUN, version=7, round=7, model={"layers": 2}, stages=[stage], dataset_cid=cid, heldout_loss=2.5, codec={"n": 4}
    )


def _manifests(key: MemberKey) -> list[Reader]:
    manifest = version_manifest()
    shard = ShardEntry(cid=content.cid_of(b"a shard"), rows=3, frames=30, size_bytes=900)
    dataset = DatasetManifest(
        name="d", codec={"kind": "small"}, phonemes=["_", "a"], languages=["en"], speakers=["s"], shards=[shard], heldout=[],
        licences=["CC0-1.0"], speaker_embedding={"dim": 2}, voices={"s": [0.6, 0.8]},
    )  # fmt: skip
    found = []
    for kind, good in ((VersionManifest, manifest), (DatasetManifest, dataset)):
        data, body = sign_manifest(key, good), good.model_dump(mode="json")

        def read(data: bytes, kind: Any = kind) -> object:
            return read_manifest(kind, data, signer=key.public)

        def resigned(draw: random.Random, body: Any = body) -> tuple[str, bytes]:
            return "a value", sign_document(key, odd_json(draw, body))

        found.append(Reader(f"{kind.__name__}, changed", blind_maker(data), read, strict=True))
        found.append(Reader(f"{kind.__name__}, changed and signed", resigned, read))

    def older(draw: random.Random) -> tuple[str, bytes]:
        number = draw.randrange(7)
        return "rolled back", sign_manifest(key, manifest.model_copy(update={"version": number, "round": number}))

    def by_another(draw: random.Random) -> tuple[str, bytes]:
        return "another signer", sign_manifest(MemberKey.from_seed(draw.randbytes(32)), manifest)

    def read_newer(data: bytes) -> object:
        opened = read_manifest(VersionManifest, data, signer=key.public)
        refuse_older(7, opened)
        return opened

    def nested(draw: random.Random) -> tuple[str, bytes]:
        depth = draw.choice((1000, 100_000))
        return "deep nesting", draw.choice((b"[" * depth, b'{"body":' * depth, b"[" * depth + b"]" * depth))

    return [
        *found,
        Reader("version rolled back", older, read_newer, strict=True),
        Reader("version of another signer", by_another, read_newer, strict=True),
        Reader("manifest, nested", nested, read_newer, strict=True),
    ]


def _records(key: MemberKey) -> list[Reader]:
    peer = make_record(
        key, run_id=RUN, stage=1, peer_id="12D3", multiaddrs=["/ip4/127.0.0.1/tcp/1/p2p/12D3"], version_cid="", throughput=1.0,
        now_ms=NOW_MS,
    )  # fmt: skip
    where = make_whereabouts(key, run_id=RUN, addresses=["127.0.0.1:1"], bootstrap_multiaddrs=[], now_ms=NOW_MS)

    def resigned(signed: pb.Signed, method: str, kind: type[Message]) -> Make:
        payload = kind.FromString(signed.payload)

        def make(draw: random.Random) -> tuple[str, bytes]:
            if draw.random() < 0.3:
                return blind(draw, signed.SerializeToString())
            _, changed = structured(draw, payload)
            stage = 1 if method == "peer_record" else 0
            made = make_signed(key, method=method, payload=changed, run_id=RUN, receiver="", stage=stage, now_ms=NOW_MS)
            return "a field", made.SerializeToString()

        return make

    return [
        Reader("peer record", resigned(peer, "peer_record", pb.PeerRecord),
               lambda data: check_record(parse_signed(data), run_id=RUN, stage=1, peer_id="12D3", now_ms=NOW_MS)),
        Reader("coordinator record", resigned(where, "coordinator_record", pb.CoordinatorRecord),
               lambda data: check_whereabouts(parse_signed(data), run_id=RUN, now_ms=NOW_MS)),
    ]  # fmt: skip


def document_readers() -> list[Reader]:
    """All of them."""
    key = MemberKey.from_seed(b"f" * 32)
    return [*_ticket(key), *_signed(key), *_manifests(key), *_records(key)]
