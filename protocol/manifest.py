"""Signed documents in canonical JSON, and the two manifests of a run: of a version and of a dataset.

A document is `{"body": ..., "signature": hex, "signer": member id}` in canonical JSON (keys sorted, no spaces, UTF-8, no
NaN), signed over a domain prefix and the canonical JSON of the body. Its bytes are the only ones with that meaning, so
its CID is as good as its signature.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.errors import Code, HocketError
from protocol.content import parse_cid
from protocol.identity import MemberKey, member_id, public_from_member_id, verify

DOCUMENT_PREFIX = b"hocket-document-1:"
MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_EMBEDDING = 4096  # numbers of a speaker embedding; rows without one are filled up to it when they are read
MAX_VOICES = 1024  # so that a manifest stays one that is sent whole: 2.5 MB of voices of 256 numbers
VOICE_DIGITS = 6  # of a number of a voice, so that canonical JSON is short


def _invalid(reason: str) -> HocketError:
    return HocketError(Code.MANIFEST_INVALID, reason)


def _check_keys(value: Any) -> None:
    """json.dumps would turn other keys into text, and two keys into the same text."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def canonical_json(value: Any) -> bytes:
    """The one way to write `value` as JSON: keys sorted by code point, no spaces, UTF-8, floats as short as they read back.

    Raises:
        TypeError, ValueError: for what is no JSON (NaN, keys that are not text, other types): a fault of the caller's code.
    """
    _check_keys(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def sign_document(key: MemberKey, body: dict[str, Any]) -> bytes:
    """The bytes of a document with this body, signed."""
    signature = key.sign(DOCUMENT_PREFIX + canonical_json(body))
    return canonical_json({"body": body, "signer": key.member_id, "signature": signature.hex()})


def open_document(data: bytes, *, signer: bytes | None) -> dict[str, Any]:
    """Check a signed document and return its body.

    Args:
        signer: raw public key of the member who must have signed; None accepts any, for documents already bound by a
            CID that is trusted.

    Raises:
        HocketError: MANIFEST_INVALID with the reason.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise _invalid(f"it has {len(data)} bytes")
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        # Also false where a key was given twice, as only one of the two is left.
        canonical = canonical_json(document) == data
    except (ValueError, RecursionError) as error:
        raise _invalid("it is no JSON") from error
    if not isinstance(document, dict) or document.keys() != {"body", "signer", "signature"}:
        raise _invalid("it is no signed document")
    body, name, signature = document["body"], document["signer"], document["signature"]
    if not canonical or not isinstance(body, dict) or not isinstance(name, str) or not isinstance(signature, str):
        raise _invalid("it is not in canonical form")
    if signer is not None and name != member_id(signer):
        raise _invalid(f"it is signed by {name[:12]} instead of {member_id(signer)[:12]}")
    try:
        verify(public_from_member_id(name), bytes.fromhex(signature), DOCUMENT_PREFIX + canonical_json(body))
    except (HocketError, ValueError) as error:
        raise _invalid(f"the signature of {name[:12]} does not fit") from error
    if signature != signature.lower() or len(signature) != 128:
        raise _invalid("its signature is not in canonical form")
    return body


def signer_of(data: bytes) -> str:
    """The member id of whoever signed a document, once the signature is checked."""
    open_document(data, signer=None)
    signer: str = json.loads(data)["signer"]
    return signer


def _check_cid(cid: str) -> str:
    try:
        parse_cid(cid)
    except HocketError as error:
        raise ValueError(error.detail) from error
    return cid


Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Cid = Annotated[str, AfterValidator(_check_cid)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
# Becomes the name of a file, so nothing but the letters, digits and hyphens of a language tag.
FileTag = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,8}(-[A-Za-z0-9]{1,8}){0,8}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TensorEntry(_Part):
    """A tensor of a stage file: name, numpy dtype name, shape."""

    name: str
    dtype: str
    shape: list[Count]


class StageFile(_Part):
    """The weights of one stage: a safetensors file. `momentum_cid` names the outer optimizer's file, if it has one."""

    stage: Count
    cid: Cid
    sha256: Sha256Hex
    size_bytes: Count
    tensors: list[TensorEntry]
    momentum_cid: Cid | None = None


class UpdateEntry(_Part):
    """An update that went into the version: who, which stage, SHA-256 of the file, frames, number of microbatches."""

    member: str
    stage: Count
    sha256: Sha256Hex
    frames: Count
    microbatches: Count


class RefusedUpdate(_Part):
    """An update that was left out, and why."""

    member: str
    stage: Count
    reason: str


class VersionManifest(_Part):
    """What a version is made of and how it came about.

    `version` rises by at least one with every publication of a run; `round` is the round that was aggregated (0: the
    first weights). `audit` reveals the secret that drew the round's audits, and repeats what was told of it when the round began,
    both in hex. `heldout_loss` is cross-entropy per code, in nats, of the version on the fixed held-out set, once known.
    """

    format: Literal["hocket-version/1"] = "hocket-version/1"
    run_id: str
    version: Count
    round: Count
    model: dict[str, Any]
    stages: list[StageFile]
    outer: dict[str, Any] = {}
    data_cursor: dict[str, Any] = {}
    accepted: list[UpdateEntry] = []
    refused: list[RefusedUpdate] = []
    heldout_loss: float | None = None
    dataset_cid: Cid
    codec: dict[str, Any] = {}
    audit: dict[str, str] = {}

    @model_validator(mode="after")
    def _stages_are_whole(self) -> VersionManifest:
        if [part.stage for part in self.stages] != list(range(len(self.stages))) or not self.stages:
            raise ValueError("the stages are not 0, 1, 2, ... in order")
        return self


class ShardEntry(_Part):
    """A shard: its CID, utterances, frames and size."""

    cid: Cid
    rows: Count
    frames: Count
    size_bytes: Count


class DatasetManifest(_Part):
    """A tokenised dataset: its codec, phoneme inventory (the index is the id), shards and where they come from.

    Args:
        aligner_cid: of the first language's aligner. aligners: of each language's.
        audio_cid: of `audio.jsonl`, what each recording was like.
        speaker_embedding: "dim" and "encoder" of the rows' speaker embeddings; empty where no row has one.
        voices: by speaker the mean embedding [dim] of the clips, of unit length; of the speakers with most clips where there are
            more than MAX_VOICES. A speaker none of whose clips is long enough has none.
        untranscribed_rows: rows without a text. refused_clips: how many were left out.
        dropped_characters: how often a character without a reading was left out of a text.
    """

    format: Literal["hocket-dataset/1"] = "hocket-dataset/1"
    name: str
    codec: dict[str, Any]
    phonemes: list[str]
    languages: list[str]
    speakers: list[str]
    shards: list[ShardEntry]
    heldout: list[ShardEntry]
    aligner_cid: Cid | None = None
    aligners: dict[FileTag, Cid] = {}
    audio_cid: Cid | None = None
    speaker_embedding: dict[str, Any] = {}
    voices: Annotated[dict[str, list[float]], Field(max_length=MAX_VOICES)] = {}
    untranscribed_rows: Count = 0
    refused_clips: Count = 0
    dropped_characters: dict[str, Count] = {}
    licences: list[str]

    @model_validator(mode="after")
    def _names_are_unique(self) -> DatasetManifest:
        for what, names in (("phoneme", self.phonemes), ("language", self.languages), ("speaker", self.speakers)):
            if len(set(names)) != len(names):
                raise ValueError(f"a {what} is listed twice")
        return self

    @model_validator(mode="after")
    def _speaker_embedding_has_a_size(self) -> DatasetManifest:
        size = self.speaker_embedding.get("dim")
        if self.speaker_embedding and not (type(size) is int and 1 <= size <= MAX_EMBEDDING):
            raise ValueError(f"a speaker embedding of {size!r} numbers")
        return self

    @model_validator(mode="after")
    def _voices_are_embeddings_of_speakers(self) -> DatasetManifest:
        size, speakers = self.speaker_embedding.get("dim"), set(self.speakers)
        for name, voice in self.voices.items():
            if name not in speakers:
                raise ValueError(f"a voice of {name[:60]!r}, who is no speaker")
            if len(voice) != size:
                raise ValueError(f"the voice of {name[:60]!r} has {len(voice)} numbers, not {size}")
            # Summed exactly, in whatever order; a number that overflows is far from 1 as well.
            if not abs(math.sqrt(math.fsum(min(abs(value), 2.0) ** 2 for value in voice)) - 1) < 1e-3:
                raise ValueError(f"the voice of {name[:60]!r} has not the length 1")
        return self


Manifest = TypeVar("Manifest", VersionManifest, DatasetManifest)


def sign_manifest(key: MemberKey, manifest: VersionManifest | DatasetManifest) -> bytes:
    """The signed document of a manifest."""
    return sign_document(key, manifest.model_dump(mode="json"))


def read_manifest(kind: type[Manifest], data: bytes, *, signer: bytes | None) -> Manifest:
    """Check a signed manifest and read it; MANIFEST_INVALID names what does not fit."""
    body = open_document(data, signer=signer)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _invalid(f"{'.'.join(map(str, first['loc'])) or 'manifest'}: {first['msg']}") from error


def refuse_older(seen_version: int | None, offered: VersionManifest | int) -> None:
    """Refuse to go back: a client takes no version below one that it has seen (the same one again is fine).

    Args:
        seen_version: highest version number seen of this run; None when none was.
        offered: the manifest, or its version number.

    Raises:
        HocketError: VERSION_ROLLED_BACK.
    """
    number = offered if isinstance(offered, int) else offered.version
    if seen_version is not None and number < seen_version:
        raise HocketError(Code.VERSION_ROLLED_BACK, f"version {number} is offered, version {seen_version} was seen")
