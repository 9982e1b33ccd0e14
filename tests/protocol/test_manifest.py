"""Signed documents and manifests: one spelling, one signer, no way back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.content import cid_of
from protocol.identity import MemberKey
from protocol.manifest import (
    DatasetManifest,
    ShardEntry,
    StageFile,
    TensorEntry,
    UpdateEntry,
    VersionManifest,
    canonical_json,
    open_document,
    read_manifest,
    refuse_older,
    sign_document,
    sign_manifest,
    signer_of,
)

KEY = MemberKey.from_seed(b"\1" * 32)
OTHER = MemberKey.from_seed(b"\2" * 32)
CID = cid_of(b"x")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(st.text(max_size=6), json_values, max_size=5)


def version(**changes: Any) -> VersionManifest:
    fields: dict[str, Any] = {
        "run_id": "run",
        "version": 4,
        "round": 3,
        "model": {"d_model": 64, "dropout": 0.1},
        "stages": [
            {
                "stage": stage,
                "cid": CID,
                "sha256": "ab" * 32,
                "size_bytes": 12,
                "tensors": [{"name": "w", "dtype": "float32", "shape": [1, 3]}],
            }
            for stage in range(2)
        ],
        "accepted": [{"member": KEY.member_id, "stage": 1, "sha256": "cd" * 32, "frames": 900, "microbatches": 8}],
        "refused": [{"member": OTHER.member_id, "stage": 0, "reason": "norm"}],
        "heldout_loss": 2.5,
        "dataset_cid": CID,
    }
    return VersionManifest.model_validate({**fields, **changes})


def dataset(**changes: Any) -> DatasetManifest:
    fields: dict[str, Any] = {
        "name": "small",
        "codec": {"kind": "small", "frame_rate": 50.0},
        "phonemes": ["", "_", "a"],
        "languages": ["en-US"],
        "speakers": ["slt"],
        "shards": [{"cid": CID, "rows": 3, "frames": 200, "size_bytes": 999}],
        "heldout": [],
        "aligner_cid": None,
        "licences": ["CC0-1.0"],
    }
    return DatasetManifest.model_validate({**fields, **changes})


def refused(data: bytes, signer: bytes | None = None) -> str:
    with pytest.raises(HocketError) as caught:
        open_document(data, signer=signer)
    assert caught.value.code is Code.MANIFEST_INVALID
    return caught.value.detail


@given(value=json_values)
def test_canonical_json_is_json_and_the_only_spelling(value: Any) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(json.loads(data)) == data


def test_canonical_json_by_example() -> None:
    assert canonical_json({"b": [1, 2.5, None, True], "a": {"é": "ß"}}) == '{"a":{"é":"ß"},"b":[1,2.5,null,true]}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": [{None: 1}]}, {"a": b"bytes"}, {"a": {1, 2}}])
def test_what_is_no_json_is_a_fault_of_the_caller(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical_json(value)


@given(body=bodies, seed=st.binary(min_size=32, max_size=32))
def test_documents_go_both_ways(body: dict[str, Any], seed: bytes) -> None:
    key = MemberKey.from_seed(seed)
    data = sign_document(key, body)
    assert open_document(data, signer=key.public) == body
    assert open_document(data, signer=None) == body
    assert signer_of(data) == key.member_id
    assert sign_document(key, body) == data


@given(body=bodies, data=st.data())
def test_one_other_byte_is_noticed(body: dict[str, Any], data: st.DataObject) -> None:
    document = bytearray(sign_document(KEY, body))
    place = data.draw(st.integers(0, len(document) - 1))
    document[place] ^= data.draw(st.integers(1, 255))
    refused(bytes(document), KEY.public)


@given(document=st.binary(max_size=200))
def test_any_bytes_are_refused_in_order(document: bytes) -> None:
    refused(document)


def test_another_signer_is_refused() -> None:
    document = sign_document(OTHER, {"a": 1})
    assert "instead of" in refused(document, KEY.public)
    claimed = json.loads(document)
    claimed["signer"] = KEY.member_id
    assert "does not fit" in refused(canonical_json(claimed), KEY.public)


def test_other_spellings_of_a_document_are_refused() -> None:
    document = sign_document(KEY, {"a": 1, "b": 2.5})
    parsed = json.loads(document)
    for other in (
        json.dumps(parsed).encode(),
        document + b"\n",
        document.replace(b'"a":1', b'"a":1,"a":1'),
        document.replace(b"2.5", b"2.50"),
        canonical_json({**parsed, "extra": 1}),
        canonical_json({**parsed, "signature": parsed["signature"].upper()}),
        canonical_json({**parsed, "signature": " " + parsed["signature"]}),
        canonical_json({**parsed, "signature": 5}),
        canonical_json({**parsed, "body": [1]}),
        canonical_json({**parsed, "signer": "nobody"}),
        canonical_json([1]),
        document.replace(b"2.5", b"NaN"),
        b"[" * 200_000,
        b"9" * 10_000,
        b"",
    ):
        refused(other, KEY.public)


def test_a_signature_of_another_domain_is_refused() -> None:
    body = {"a": 1}
    document = {"body": body, "signer": KEY.member_id, "signature": KEY.sign(canonical_json(body)).hex()}
    assert "does not fit" in refused(canonical_json(document))


def test_manifests_go_both_ways() -> None:
    data = sign_manifest(KEY, version())
    assert read_manifest(VersionManifest, data, signer=KEY.public) == version()
    assert json.loads(data)["body"]["format"] == "hocket-version/1"
    data = sign_manifest(KEY, dataset())
    assert read_manifest(DatasetManifest, data, signer=KEY.public) == dataset()


def test_manifests_are_built_from_their_parts() -> None:
    built = VersionManifest(
        run_id="run",
        version=0,
        round=0,
        model={},
        stages=[
            StageFile(
                stage=0, cid=CID, sha256="00" * 32, size_bytes=1, tensors=[TensorEntry(name="w", dtype="float32", shape=[2])]
            )
        ],
        accepted=[UpdateEntry(member="m", stage=0, sha256="00" * 32, frames=1, microbatches=1)],
        dataset_cid=CID,
    )
    assert built.heldout_loss is None and built.refused == []
    assert DatasetManifest.model_validate(dataset().model_dump()).shards[0] == ShardEntry(
        cid=CID, rows=3, frames=200, size_bytes=999
    )


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (VersionManifest, {"surprise": 1}, "surprise"),
        (VersionManifest, {"format": "hocket-version/2"}, "format"),
        (VersionManifest, {"version": -1}, "version"),
        (VersionManifest, {"version": "4"}, "version"),
        (VersionManifest, {"version": True}, "version"),
        (VersionManifest, {"round": 2**63}, "round"),
        (VersionManifest, {"dataset_cid": "QmX"}, "dataset_cid"),
        (VersionManifest, {"stages": []}, "stages"),
        (VersionManifest, {"accepted": [{"member": "m"}]}, "accepted.0.stage"),
        (DatasetManifest, {"phonemes": ["a", "a"]}, "phoneme"),
        (DatasetManifest, {"shards": [{"cid": CID, "rows": 1, "frames": 1, "size_bytes": 1, "path": "/"}]}, "shards.0.path"),
        (DatasetManifest, {"licences": None}, "licences"),
    ],
)
def test_bodies_that_do_not_fit_are_refused_by_name(kind: Any, changes: dict[str, Any], named: str) -> None:
    good = version() if kind is VersionManifest else dataset()
    body = {**good.model_dump(mode="json"), **changes}
    with pytest.raises(HocketError) as caught:
        read_manifest(kind, sign_document(KEY, body), signer=KEY.public)
    assert caught.value.code is Code.MANIFEST_INVALID
    assert named in caught.value.detail


def test_stages_out_of_order_are_refused() -> None:
    body = version().model_dump(mode="json")
    body["stages"].reverse()
    with pytest.raises(HocketError, match="in order"):
        read_manifest(VersionManifest, sign_document(KEY, body), signer=None)


def test_there_is_no_way_back_to_an_older_version() -> None:
    refuse_older(None, 0)
    refuse_older(4, version())
    refuse_older(3, version())
    with pytest.raises(HocketError) as caught:
        refuse_older(5, version())
    assert caught.value.code is Code.VERSION_ROLLED_BACK
