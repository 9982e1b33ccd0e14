"""Keys: their names, files and signatures, and the keys that are refused."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.identity import (
    CURVE_D,
    FIELD_PRIME,
    SMALL_ORDER_Y,
    MemberKey,
    PeerKey,
    base58_encode,
    check_public_key,
    member_id,
    peer_id_of,
    public_from_member_id,
    verify,
    verify_peer_proof,
)

Point = tuple[int, int]


def add(a: Point, b: Point) -> Point:
    """The complete addition law of Ed25519's curve, written out from its definition."""
    (x1, y1), (x2, y2) = a, b
    product = CURVE_D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, FIELD_PRIME)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, FIELD_PRIME)
    return x % FIELD_PRIME, y % FIELD_PRIME


def x_of(y: int) -> int:
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    root = pow(square, (FIELD_PRIME + 3) // 8, FIELD_PRIME)
    if root * root % FIELD_PRIME != square:
        root = root * pow(2, (FIELD_PRIME - 1) // 4, FIELD_PRIME) % FIELD_PRIME
    assert root * root % FIELD_PRIME == square
    return root


def encoding(y: int, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


@pytest.fixture(scope="module")
def peer_key() -> PeerKey:
    return PeerKey.generate()


def refused(public: bytes) -> str:
    with pytest.raises(HocketError) as caught:
        check_public_key(public)
    assert caught.value.code is Code.SIGNATURE_INVALID
    return caught.value.detail


def test_the_small_order_table_is_the_eight_torsion() -> None:
    points = {(x, y) for y in SMALL_ORDER_Y for x in (x_of(y), -x_of(y) % FIELD_PRIME)}
    assert len(points) == 8
    for point in points:
        eighth = point
        for _ in range(3):
            eighth = add(eighth, eighth)
        assert eighth == (0, 1)


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", sorted(SMALL_ORDER_Y))
def test_small_order_keys_are_refused_with_either_sign(y: int, sign: int) -> None:
    assert "small order" in refused(encoding(y, sign))


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", range(FIELD_PRIME, 2**255))
def test_each_non_canonical_y_is_refused(y: int, sign: int) -> None:
    assert "canonical" in refused(encoding(y, sign))


def test_a_number_that_is_no_point_and_another_length_are_refused() -> None:
    assert "not a point" in refused(encoding(2, 0))
    assert "bytes instead of 32" in refused(b"\1" * 31)
    assert "bytes instead of 32" in refused(b"")


def test_a_forgery_for_a_small_order_key_is_refused() -> None:
    """With the identity as key, R = s B is a valid signature on everything; a bare library call lets it through."""
    identity = encoding(1, 0)
    base_point = b"\x58" + b"\x66" * 31
    forged = base_point + (1).to_bytes(32, "little")
    with pytest.raises(HocketError):
        verify(identity, forged, b"anything")


def test_signature_vector_of_rfc_8032() -> None:
    key = MemberKey.from_seed(bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"))
    assert key.public.hex() == "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    assert key.sign(bytes.fromhex("af82")).hex() == (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )


@given(seed=st.binary(min_size=32, max_size=32), data=st.binary(max_size=200), flip=st.integers(0, 511))
def test_signatures_fit_their_data_and_nothing_else(seed: bytes, data: bytes, flip: int) -> None:
    key = MemberKey.from_seed(seed)
    signature = key.sign(data)
    verify(key.public, signature, data)
    bent = bytearray(signature)
    bent[flip // 8] ^= 1 << flip % 8
    for wrong_signature, wrong_data in ((bytes(bent), data), (signature, data + b"x"), (signature[:-1], data), (b"", data)):
        with pytest.raises(HocketError) as caught:
            verify(key.public, wrong_signature, wrong_data)
        assert caught.value.code is Code.SIGNATURE_INVALID


@given(seed=st.binary(min_size=32, max_size=32))
def test_member_ids_go_both_ways(seed: bytes) -> None:
    key = MemberKey.from_seed(seed)
    assert len(key.member_id) == 52
    assert key.member_id == member_id(key.public) == key.member_id.lower()
    assert public_from_member_id(key.member_id) == key.public


def test_other_spellings_of_a_member_id_are_refused() -> None:
    name = MemberKey.from_seed(b"\7" * 32).member_id
    last = "abcdefghijklmnopqrstuvwxyz234567"["abcdefghijklmnopqrstuvwxyz234567".index(name[-1]) ^ 1]
    small = base64.b32encode(encoding(0, 0)).decode().rstrip("=").lower()
    for wrong in ("", name.upper(), name + "a", name[:-1], name[:-1] + last, name + "====", "é" * 52, "1" * 52, small):
        with pytest.raises(HocketError):
            public_from_member_id(wrong)


def test_the_member_key_file_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state" / "member.key"
    key = MemberKey.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert MemberKey.load_or_create(path).public == key.public
    assert [entry.name for entry in path.parent.iterdir()] == ["member.key"]


@pytest.mark.parametrize("kind", [MemberKey, PeerKey])
def test_key_files_that_cannot_be_used_are_numbered_errors(kind: type[MemberKey] | type[PeerKey], tmp_path: Path) -> None:
    path = tmp_path / "key"
    kind.load_or_create(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * 20_000, b"\x08\x01\x12\x20" + b"\1" * 32):
        path.write_bytes(damaged)
        with pytest.raises(HocketError) as caught:
            kind.load_or_create(path)
        assert caught.value.code is Code.IDENTITY_UNREADABLE
    with pytest.raises(HocketError) as caught:
        kind.load_or_create(tmp_path)
    assert caught.value.code is Code.IDENTITY_UNREADABLE
    path.write_bytes(whole)
    path.chmod(0o640)
    with pytest.raises(HocketError, match="chmod 600"):
        kind.load_or_create(path)


def test_a_member_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    path = tmp_path / "key"
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(pem)
    path.chmod(0o600)
    with pytest.raises(HocketError, match="another kind"):
        MemberKey.load_or_create(path)


def test_the_peer_key_file_stays(tmp_path: Path) -> None:
    key = PeerKey.load_or_create(tmp_path / "peer.key")
    again = PeerKey.load_or_create(tmp_path / "peer.key")
    assert (again.peer_id, again.public_key_bytes) == (key.peer_id, key.public_key_bytes)
    assert (tmp_path / "peer.key").stat().st_mode & 0o777 == 0o600


def test_a_peer_proof_binds_peer_and_member(peer_key: PeerKey) -> None:
    member, other = MemberKey.from_seed(b"\1" * 32), MemberKey.from_seed(b"\2" * 32)
    proof = peer_key.prove(member.public)
    verify_peer_proof(peer_key.peer_id, peer_key.public_key_bytes, proof, member.public)
    stranger = PeerKey.generate()
    wrong = [
        (peer_key.peer_id, peer_key.public_key_bytes, proof, other.public),
        (stranger.peer_id, peer_key.public_key_bytes, proof, member.public),
        (stranger.peer_id, stranger.public_key_bytes, proof, member.public),
        (peer_key.peer_id, peer_key.public_key_bytes, proof[:-1] + bytes([proof[-1] ^ 1]), member.public),
        (peer_key.peer_id, peer_key.public_key_bytes, b"", member.public),
        (peer_key.peer_id, peer_key.public_key_bytes, peer_key.sign(member.public), member.public),
        (peer_key.peer_id, peer_key.public_key_bytes, proof, encoding(1, 0)),
    ]
    for arguments in wrong:
        with pytest.raises(HocketError) as caught:
            verify_peer_proof(*arguments)
        assert caught.value.code is Code.SIGNATURE_INVALID


@given(data=st.binary(max_size=3000))
def test_peer_keys_of_any_other_form_are_refused(data: bytes) -> None:
    with pytest.raises(HocketError) as caught:
        verify_peer_proof(peer_id_of(data), data, b"", MemberKey.from_seed(b"\1" * 32).public)
    assert caught.value.code is Code.SIGNATURE_INVALID


@given(data=st.data())
def test_a_peer_key_with_one_other_byte_is_refused_in_order(data: st.DataObject, peer_key: PeerKey) -> None:
    member = MemberKey.from_seed(b"\1" * 32)
    proof = peer_key.prove(member.public)
    bent = bytearray(peer_key.public_key_bytes)
    bent[data.draw(st.integers(0, len(bent) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(HocketError) as caught:
        verify_peer_proof(peer_id_of(bytes(bent)), bytes(bent), proof, member.public)
    assert caught.value.code is Code.SIGNATURE_INVALID


@pytest.mark.parametrize("bits", [1024, 2047])
def test_weak_peer_keys_are_refused(bits: int) -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa

    weak = PeerKey(rsa.generate_private_key(public_exponent=65537, key_size=bits))
    member = MemberKey.from_seed(b"\1" * 32)
    with pytest.raises(HocketError, match="2048"):
        verify_peer_proof(weak.peer_id, weak.public_key_bytes, weak.prove(member.public), member.public)


def test_base58_keeps_leading_zeros() -> None:
    # From the Bitcoin project's published test vectors.
    assert (
        base58_encode(bytes.fromhex("00eb15231dfceb60925886b67d065299925915aeb172c06647")) == "1NS17iag9jJgTHD1VXjvLCEnZuQ3rJDE9L"
    )
    assert base58_encode(b"\0\0\0") == "111"
    assert base58_encode(b"") == ""


def test_the_libp2p_daemon_gives_our_identity_file_the_same_peer_id(tmp_path: Path) -> None:
    p2p = pytest.importorskip("hivemind.p2p")
    key = PeerKey.load_or_create(tmp_path / "peer.key")

    async def peer_id() -> str:
        daemon = await p2p.P2P.create(
            identity_path=str(tmp_path / "peer.key"), host_maddrs=["/ip4/127.0.0.1/tcp/0"], dht_mode="client", startup_timeout=60
        )
        try:
            return daemon.peer_id.to_base58()
        finally:
            await daemon.shutdown()

    assert asyncio.run(peer_id()) == key.peer_id


def test_we_read_an_identity_file_that_hivemind_made(tmp_path: Path) -> None:
    p2p = pytest.importorskip("hivemind.p2p")
    path = tmp_path / "peer.key"
    p2p.P2P.generate_identity(str(path))
    key = PeerKey.load_or_create(path)
    multihash = pytest.importorskip("multihash")
    if not hasattr(multihash, "encode"):
        pytest.skip("another package of the name multihash hides the one that hivemind needs")
    assert p2p.PeerID.from_identity(path.read_bytes()).to_base58() == key.peer_id
