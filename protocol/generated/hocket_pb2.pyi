from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    REPLICA: _ClassVar[Role]
    STANDBY: _ClassVar[Role]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    GATHERING: _ClassVar[Phase]
    PREPARING: _ClassVar[Phase]
    OPEN: _ClassVar[Phase]
    CLOSING: _ClassVar[Phase]
    AGGREGATING: _ClassVar[Phase]
    FINISHED: _ClassVar[Phase]

class OpeningKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPENING_UNSPECIFIED: _ClassVar[OpeningKind]
    PASS_INPUT: _ClassVar[OpeningKind]
    PASS_OUTPUT: _ClassVar[OpeningKind]
    STEP: _ClassVar[OpeningKind]
    WITNESS: _ClassVar[OpeningKind]
    REQUEST: _ClassVar[OpeningKind]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    TRAIN: _ClassVar[Mode]
    EVAL: _ClassVar[Mode]
    AUDIT: _ClassVar[Mode]

class Refusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_UNSPECIFIED: _ClassVar[Refusal]
    WRONG_ROUND: _ClassVar[Refusal]
    WRONG_BASE: _ClassVar[Refusal]
    BUSY: _ClassVar[Refusal]
    DRAINING: _ClassVar[Refusal]
    FENCED: _ClassVar[Refusal]
    NOT_A_MEMBER: _ClassVar[Refusal]
    BAD_INPUT: _ClassVar[Refusal]
    DOWNSTREAM_FAILED: _ClassVar[Refusal]
ROLE_UNSPECIFIED: Role
REPLICA: Role
STANDBY: Role
PHASE_UNSPECIFIED: Phase
GATHERING: Phase
PREPARING: Phase
OPEN: Phase
CLOSING: Phase
AGGREGATING: Phase
FINISHED: Phase
OPENING_UNSPECIFIED: OpeningKind
PASS_INPUT: OpeningKind
PASS_OUTPUT: OpeningKind
STEP: OpeningKind
WITNESS: OpeningKind
REQUEST: OpeningKind
MODE_UNSPECIFIED: Mode
TRAIN: Mode
EVAL: Mode
AUDIT: Mode
REFUSAL_UNSPECIFIED: Refusal
WRONG_ROUND: Refusal
WRONG_BASE: Refusal
BUSY: Refusal
DRAINING: Refusal
FENCED: Refusal
NOT_A_MEMBER: Refusal
BAD_INPUT: Refusal
DOWNSTREAM_FAILED: Refusal

class SignedHeader(_message.Message):
    __slots__ = ("method", "run_id", "round", "base_cid", "stage", "payload_sha256", "receiver", "nonce", "time_ms", "public_key")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_CID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SHA256_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    method: str
    run_id: str
    round: int
    base_cid: str
    stage: int
    payload_sha256: bytes
    receiver: str
    nonce: bytes
    time_ms: int
    public_key: bytes
    def __init__(self, method: _Optional[str] = ..., run_id: _Optional[str] = ..., round: _Optional[int] = ..., base_cid: _Optional[str] = ..., stage: _Optional[int] = ..., payload_sha256: _Optional[bytes] = ..., receiver: _Optional[str] = ..., nonce: _Optional[bytes] = ..., time_ms: _Optional[int] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class Signed(_message.Message):
    __slots__ = ("header", "payload", "signature")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    payload: bytes
    signature: bytes
    def __init__(self, header: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("run_id", "coordinator_addresses", "coordinator_key", "tls_sha256", "bootstrap_multiaddrs", "invitation")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_SHA256_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_MULTIADDRS_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    coordinator_addresses: _containers.RepeatedScalarFieldContainer[str]
    coordinator_key: bytes
    tls_sha256: bytes
    bootstrap_multiaddrs: _containers.RepeatedScalarFieldContainer[str]
    invitation: str
    def __init__(self, run_id: _Optional[str] = ..., coordinator_addresses: _Optional[_Iterable[str]] = ..., coordinator_key: _Optional[bytes] = ..., tls_sha256: _Optional[bytes] = ..., bootstrap_multiaddrs: _Optional[_Iterable[str]] = ..., invitation: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("peer_id", "peer_public_key", "peer_signature", "operator", "memory_limit_bytes", "invitation", "software", "threads", "wire_encodings", "device_class")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    WIRE_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    peer_public_key: bytes
    peer_signature: bytes
    operator: str
    memory_limit_bytes: int
    invitation: str
    software: str
    threads: int
    wire_encodings: _containers.RepeatedScalarFieldContainer[str]
    device_class: str
    def __init__(self, peer_id: _Optional[str] = ..., peer_public_key: _Optional[bytes] = ..., peer_signature: _Optional[bytes] = ..., operator: _Optional[str] = ..., memory_limit_bytes: _Optional[int] = ..., invitation: _Optional[str] = ..., software: _Optional[str] = ..., threads: _Optional[int] = ..., wire_encodings: _Optional[_Iterable[str]] = ..., device_class: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("run_toml", "model_config_json", "view", "dataset_manifest_cid")
    RUN_TOML_FIELD_NUMBER: _ClassVar[int]
    MODEL_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    DATASET_MANIFEST_CID_FIELD_NUMBER: _ClassVar[int]
    run_toml: str
    model_config_json: str
    view: RunView
    dataset_manifest_cid: str
    def __init__(self, run_toml: _Optional[str] = ..., model_config_json: _Optional[str] = ..., view: _Optional[_Union[RunView, _Mapping]] = ..., dataset_manifest_cid: _Optional[str] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("member_id", "peer_id", "stage", "role", "generation", "operator")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    peer_id: str
    stage: int
    role: Role
    generation: int
    operator: str
    def __init__(self, member_id: _Optional[str] = ..., peer_id: _Optional[str] = ..., stage: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., generation: _Optional[int] = ..., operator: _Optional[str] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("run_id", "round", "entries")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    entries: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ...) -> None: ...

class RoundSettings(_message.Message):
    __slots__ = ("frames_per_inner_step", "microbatches_per_inner_step", "target_frames", "inner_lr_peak", "frames_before", "total_frames", "warmup_frames", "seed", "wire", "silence_s", "step_deadline_s", "attempts", "weight_decay", "clip_norm", "accumulation", "lr_floor")
    FRAMES_PER_INNER_STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_PER_INNER_STEP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FRAMES_FIELD_NUMBER: _ClassVar[int]
    INNER_LR_PEAK_FIELD_NUMBER: _ClassVar[int]
    FRAMES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FRAMES_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FRAMES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    STEP_DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_FIELD_NUMBER: _ClassVar[int]
    LR_FLOOR_FIELD_NUMBER: _ClassVar[int]
    frames_per_inner_step: int
    microbatches_per_inner_step: int
    target_frames: int
    inner_lr_peak: float
    frames_before: int
    total_frames: int
    warmup_frames: int
    seed: int
    wire: str
    silence_s: float
    step_deadline_s: float
    attempts: int
    weight_decay: float
    clip_norm: float
    accumulation: str
    lr_floor: float
    def __init__(self, frames_per_inner_step: _Optional[int] = ..., microbatches_per_inner_step: _Optional[int] = ..., target_frames: _Optional[int] = ..., inner_lr_peak: _Optional[float] = ..., frames_before: _Optional[int] = ..., total_frames: _Optional[int] = ..., warmup_frames: _Optional[int] = ..., seed: _Optional[int] = ..., wire: _Optional[str] = ..., silence_s: _Optional[float] = ..., step_deadline_s: _Optional[float] = ..., attempts: _Optional[int] = ..., weight_decay: _Optional[float] = ..., clip_norm: _Optional[float] = ..., accumulation: _Optional[str] = ..., lr_floor: _Optional[float] = ...) -> None: ...

class PeerAddress(_message.Message):
    __slots__ = ("peer_id", "multiaddrs")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    MULTIADDRS_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    multiaddrs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peer_id: _Optional[str] = ..., multiaddrs: _Optional[_Iterable[str]] = ...) -> None: ...

class RunView(_message.Message):
    __slots__ = ("revision", "phase", "round", "base_cid", "roster", "settings", "providers", "stages", "reason", "evaluate", "gateways", "audit_commitment", "witness", "receipt", "openings")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_CID_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    OPENINGS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    phase: Phase
    round: int
    base_cid: str
    roster: Roster
    settings: RoundSettings
    providers: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    stages: int
    reason: str
    evaluate: bool
    gateways: _containers.RepeatedScalarFieldContainer[str]
    audit_commitment: bytes
    witness: _containers.RepeatedCompositeFieldContainer[WitnessTask]
    receipt: Signed
    openings: _containers.RepeatedCompositeFieldContainer[OpeningTask]
    def __init__(self, revision: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., round: _Optional[int] = ..., base_cid: _Optional[str] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., settings: _Optional[_Union[RoundSettings, _Mapping]] = ..., providers: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., stages: _Optional[int] = ..., reason: _Optional[str] = ..., evaluate: _Optional[bool] = ..., gateways: _Optional[_Iterable[str]] = ..., audit_commitment: _Optional[bytes] = ..., witness: _Optional[_Iterable[_Union[WitnessTask, _Mapping]]] = ..., receipt: _Optional[_Union[Signed, _Mapping]] = ..., openings: _Optional[_Iterable[_Union[OpeningTask, _Mapping]]] = ...) -> None: ...

class MicrobatchRecord(_message.Message):
    __slots__ = ("id", "frames", "input", "output", "gradient_in", "gradient_out", "sender", "leased")
    ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_IN_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_OUT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    id: int
    frames: int
    input: bytes
    output: bytes
    gradient_in: bytes
    gradient_out: bytes
    sender: str
    leased: LeasedRows
    def __init__(self, id: _Optional[int] = ..., frames: _Optional[int] = ..., input: _Optional[bytes] = ..., output: _Optional[bytes] = ..., gradient_in: _Optional[bytes] = ..., gradient_out: _Optional[bytes] = ..., sender: _Optional[str] = ..., leased: _Optional[_Union[LeasedRows, _Mapping]] = ...) -> None: ...

class LeasedRows(_message.Message):
    __slots__ = ("epoch", "start", "stop", "first_microbatch_id", "microbatches")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FIRST_MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start: int
    stop: int
    first_microbatch_id: int
    microbatches: int
    def __init__(self, epoch: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., first_microbatch_id: _Optional[int] = ..., microbatches: _Optional[int] = ...) -> None: ...

class StepCommit(_message.Message):
    __slots__ = ("round", "generation", "stage", "step", "previous", "link", "update_digest", "moments_digest", "records", "frames", "lr", "part")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    UPDATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    round: int
    generation: int
    stage: int
    step: int
    previous: bytes
    link: bytes
    update_digest: bytes
    moments_digest: bytes
    records: _containers.RepeatedCompositeFieldContainer[MicrobatchRecord]
    frames: int
    lr: float
    part: int
    def __init__(self, round: _Optional[int] = ..., generation: _Optional[int] = ..., stage: _Optional[int] = ..., step: _Optional[int] = ..., previous: _Optional[bytes] = ..., link: _Optional[bytes] = ..., update_digest: _Optional[bytes] = ..., moments_digest: _Optional[bytes] = ..., records: _Optional[_Iterable[_Union[MicrobatchRecord, _Mapping]]] = ..., frames: _Optional[int] = ..., lr: _Optional[float] = ..., part: _Optional[int] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("open_step", "open_microbatches", "reason")
    OPEN_STEP_FIELD_NUMBER: _ClassVar[int]
    OPEN_MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    open_step: bool
    open_microbatches: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, open_step: _Optional[bool] = ..., open_microbatches: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class OpeningHead(_message.Message):
    __slots__ = ("kind", "round", "stage", "generation", "step", "microbatch_id", "size_bytes", "sha256", "audit_id", "part", "input_cid")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    INPUT_CID_FIELD_NUMBER: _ClassVar[int]
    kind: OpeningKind
    round: int
    stage: int
    generation: int
    step: int
    microbatch_id: int
    size_bytes: int
    sha256: bytes
    audit_id: str
    part: int
    input_cid: str
    def __init__(self, kind: _Optional[_Union[OpeningKind, str]] = ..., round: _Optional[int] = ..., stage: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., microbatch_id: _Optional[int] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., audit_id: _Optional[str] = ..., part: _Optional[int] = ..., input_cid: _Optional[str] = ...) -> None: ...

class WitnessTask(_message.Message):
    __slots__ = ("audit_id", "round", "stage", "base_cid", "microbatch_id", "frames", "input_cid")
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BASE_CID_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    INPUT_CID_FIELD_NUMBER: _ClassVar[int]
    audit_id: str
    round: int
    stage: int
    base_cid: str
    microbatch_id: int
    frames: int
    input_cid: str
    def __init__(self, audit_id: _Optional[str] = ..., round: _Optional[int] = ..., stage: _Optional[int] = ..., base_cid: _Optional[str] = ..., microbatch_id: _Optional[int] = ..., frames: _Optional[int] = ..., input_cid: _Optional[str] = ...) -> None: ...

class OpeningTask(_message.Message):
    __slots__ = ("kind", "round", "step", "microbatch_id", "audit_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    kind: OpeningKind
    round: int
    step: int
    microbatch_id: int
    audit_id: str
    def __init__(self, kind: _Optional[_Union[OpeningKind, str]] = ..., round: _Optional[int] = ..., step: _Optional[int] = ..., microbatch_id: _Optional[int] = ..., audit_id: _Optional[str] = ...) -> None: ...

class ContributionReceipt(_message.Message):
    __slots__ = ("round", "stage", "member_id", "frames", "outcome", "reason", "version_cid")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_CID_FIELD_NUMBER: _ClassVar[int]
    round: int
    stage: int
    member_id: str
    frames: int
    outcome: str
    reason: str
    version_cid: str
    def __init__(self, round: _Optional[int] = ..., stage: _Optional[int] = ..., member_id: _Optional[str] = ..., frames: _Optional[int] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., version_cid: _Optional[str] = ...) -> None: ...

class CodebookLoss(_message.Message):
    __slots__ = ("ce_sum", "count")
    CE_SUM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ce_sum: float
    count: int
    def __init__(self, ce_sum: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class AuxiliaryLoss(_message.Message):
    __slots__ = ("name", "sum", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    sum: float
    count: int
    def __init__(self, name: _Optional[str] = ..., sum: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class CountedMicrobatch(_message.Message):
    __slots__ = ("id", "frames")
    ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    id: int
    frames: int
    def __init__(self, id: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class MemberReport(_message.Message):
    __slots__ = ("round", "stage", "generation", "ready_base_cid", "weights_sha256", "frames_done", "inner_steps", "losses", "auxiliary", "duplicates", "dropped", "in_flight", "leases_done", "heldout", "bytes_sent_activations", "bytes_sent_gradients", "bytes_sent_blocks", "bytes_sent_updates", "reroutes", "longest_wait_s", "suspects", "pid", "resumed_generations", "throughput", "oddities")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READY_BASE_CID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    FRAMES_DONE_FIELD_NUMBER: _ClassVar[int]
    INNER_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    AUXILIARY_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LEASES_DONE_FIELD_NUMBER: _ClassVar[int]
    HELDOUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_UPDATES_FIELD_NUMBER: _ClassVar[int]
    REROUTES_FIELD_NUMBER: _ClassVar[int]
    LONGEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESUMED_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    ODDITIES_FIELD_NUMBER: _ClassVar[int]
    round: int
    stage: int
    generation: int
    ready_base_cid: str
    weights_sha256: bytes
    frames_done: int
    inner_steps: int
    losses: _containers.RepeatedCompositeFieldContainer[CodebookLoss]
    auxiliary: _containers.RepeatedCompositeFieldContainer[AuxiliaryLoss]
    duplicates: int
    dropped: int
    in_flight: int
    leases_done: _containers.RepeatedCompositeFieldContainer[LeaseDone]
    heldout: _containers.RepeatedCompositeFieldContainer[CodebookLoss]
    bytes_sent_activations: int
    bytes_sent_gradients: int
    bytes_sent_blocks: int
    bytes_sent_updates: int
    reroutes: int
    longest_wait_s: float
    suspects: _containers.RepeatedScalarFieldContainer[str]
    pid: int
    resumed_generations: _containers.RepeatedScalarFieldContainer[int]
    throughput: float
    oddities: _containers.RepeatedCompositeFieldContainer[Oddity]
    def __init__(self, round: _Optional[int] = ..., stage: _Optional[int] = ..., generation: _Optional[int] = ..., ready_base_cid: _Optional[str] = ..., weights_sha256: _Optional[bytes] = ..., frames_done: _Optional[int] = ..., inner_steps: _Optional[int] = ..., losses: _Optional[_Iterable[_Union[CodebookLoss, _Mapping]]] = ..., auxiliary: _Optional[_Iterable[_Union[AuxiliaryLoss, _Mapping]]] = ..., duplicates: _Optional[int] = ..., dropped: _Optional[int] = ..., in_flight: _Optional[int] = ..., leases_done: _Optional[_Iterable[_Union[LeaseDone, _Mapping]]] = ..., heldout: _Optional[_Iterable[_Union[CodebookLoss, _Mapping]]] = ..., bytes_sent_activations: _Optional[int] = ..., bytes_sent_gradients: _Optional[int] = ..., bytes_sent_blocks: _Optional[int] = ..., bytes_sent_updates: _Optional[int] = ..., reroutes: _Optional[int] = ..., longest_wait_s: _Optional[float] = ..., suspects: _Optional[_Iterable[str]] = ..., pid: _Optional[int] = ..., resumed_generations: _Optional[_Iterable[int]] = ..., throughput: _Optional[float] = ..., oddities: _Optional[_Iterable[_Union[Oddity, _Mapping]]] = ...) -> None: ...

class Oddity(_message.Message):
    __slots__ = ("member_id", "microbatch_id", "what", "reason", "refused")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    microbatch_id: int
    what: str
    reason: str
    refused: bool
    def __init__(self, member_id: _Optional[str] = ..., microbatch_id: _Optional[int] = ..., what: _Optional[str] = ..., reason: _Optional[str] = ..., refused: _Optional[bool] = ...) -> None: ...

class LeaseDone(_message.Message):
    __slots__ = ("lease_id", "frames", "microbatches")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    frames: int
    microbatches: int
    def __init__(self, lease_id: _Optional[int] = ..., frames: _Optional[int] = ..., microbatches: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("known_revision", "report", "wait_s")
    KNOWN_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    known_revision: int
    report: MemberReport
    wait_s: float
    def __init__(self, known_revision: _Optional[int] = ..., report: _Optional[_Union[MemberReport, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("round", "generation", "known_lease_id")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    round: int
    generation: int
    known_lease_id: int
    def __init__(self, round: _Optional[int] = ..., generation: _Optional[int] = ..., known_lease_id: _Optional[int] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("granted", "lease_id", "epoch", "start", "stop", "first_microbatch_id", "reason")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FIRST_MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    lease_id: int
    epoch: int
    start: int
    stop: int
    first_microbatch_id: int
    reason: str
    def __init__(self, granted: _Optional[bool] = ..., lease_id: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., first_microbatch_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("after_round",)
    AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    after_round: int
    def __init__(self, after_round: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class UpdateHead(_message.Message):
    __slots__ = ("round", "base_cid", "stage", "generation", "size_bytes", "sha256", "microbatches", "inner_steps", "frames", "duplicates", "dropped", "leaving", "chain_link", "chain_step", "chain_part", "uncounted")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_CID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    INNER_STEPS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CHAIN_LINK_FIELD_NUMBER: _ClassVar[int]
    CHAIN_STEP_FIELD_NUMBER: _ClassVar[int]
    CHAIN_PART_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    round: int
    base_cid: str
    stage: int
    generation: int
    size_bytes: int
    sha256: bytes
    microbatches: _containers.RepeatedCompositeFieldContainer[CountedMicrobatch]
    inner_steps: int
    frames: int
    duplicates: int
    dropped: int
    leaving: bool
    chain_link: bytes
    chain_step: int
    chain_part: int
    uncounted: _containers.RepeatedCompositeFieldContainer[MicrobatchRecord]
    def __init__(self, round: _Optional[int] = ..., base_cid: _Optional[str] = ..., stage: _Optional[int] = ..., generation: _Optional[int] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., microbatches: _Optional[_Iterable[_Union[CountedMicrobatch, _Mapping]]] = ..., inner_steps: _Optional[int] = ..., frames: _Optional[int] = ..., duplicates: _Optional[int] = ..., dropped: _Optional[int] = ..., leaving: _Optional[bool] = ..., chain_link: _Optional[bytes] = ..., chain_step: _Optional[int] = ..., chain_part: _Optional[int] = ..., uncounted: _Optional[_Iterable[_Union[MicrobatchRecord, _Mapping]]] = ...) -> None: ...

class UpdateEnd(_message.Message):
    __slots__ = ("chunks", "bytes")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    bytes: int
    def __init__(self, chunks: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class UpdateChunk(_message.Message):
    __slots__ = ("head", "data", "end")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    head: Signed
    data: bytes
    end: UpdateEnd
    def __init__(self, head: _Optional[_Union[Signed, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[UpdateEnd, _Mapping]] = ...) -> None: ...

class UpdateReceipt(_message.Message):
    __slots__ = ("round", "stage", "sha256", "accepted", "reason", "open_step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OPEN_STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    stage: int
    sha256: bytes
    accepted: bool
    reason: str
    open_step: bool
    def __init__(self, round: _Optional[int] = ..., stage: _Optional[int] = ..., sha256: _Optional[bytes] = ..., accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., open_step: _Optional[bool] = ...) -> None: ...

class TensorHead(_message.Message):
    __slots__ = ("name", "dtype", "shape", "encoding", "size_bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    encoding: str
    size_bytes: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., encoding: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class TrainStepRequest(_message.Message):
    __slots__ = ("run_id", "round", "base_cid", "stage", "microbatch_id", "attempts", "deadline_s", "mode", "seed", "inner_step_frames", "generation", "receiver_generation", "frames", "tensors", "wire")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_CID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INNER_STEP_FRAMES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    base_cid: str
    stage: int
    microbatch_id: int
    attempts: int
    deadline_s: float
    mode: Mode
    seed: int
    inner_step_frames: int
    generation: int
    receiver_generation: int
    frames: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorHead]
    wire: str
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., base_cid: _Optional[str] = ..., stage: _Optional[int] = ..., microbatch_id: _Optional[int] = ..., attempts: _Optional[int] = ..., deadline_s: _Optional[float] = ..., mode: _Optional[_Union[Mode, str]] = ..., seed: _Optional[int] = ..., inner_step_frames: _Optional[int] = ..., generation: _Optional[int] = ..., receiver_generation: _Optional[int] = ..., frames: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorHead, _Mapping]]] = ..., wire: _Optional[str] = ...) -> None: ...

class PathEntry(_message.Message):
    __slots__ = ("stage", "peer_id", "digest", "pid")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    stage: int
    peer_id: str
    digest: bytes
    pid: int
    def __init__(self, stage: _Optional[int] = ..., peer_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., pid: _Optional[int] = ...) -> None: ...

class TrainStepAnswer(_message.Message):
    __slots__ = ("refusal", "detail", "failed_stage", "failed_peer", "tensors", "losses", "auxiliary", "path", "attempts_used")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FAILED_STAGE_FIELD_NUMBER: _ClassVar[int]
    FAILED_PEER_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    AUXILIARY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_USED_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    detail: str
    failed_stage: int
    failed_peer: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorHead]
    losses: _containers.RepeatedCompositeFieldContainer[CodebookLoss]
    auxiliary: _containers.RepeatedCompositeFieldContainer[AuxiliaryLoss]
    path: _containers.RepeatedCompositeFieldContainer[PathEntry]
    attempts_used: int
    def __init__(self, refusal: _Optional[_Union[Refusal, str]] = ..., detail: _Optional[str] = ..., failed_stage: _Optional[int] = ..., failed_peer: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorHead, _Mapping]]] = ..., losses: _Optional[_Iterable[_Union[CodebookLoss, _Mapping]]] = ..., auxiliary: _Optional[_Iterable[_Union[AuxiliaryLoss, _Mapping]]] = ..., path: _Optional[_Iterable[_Union[PathEntry, _Mapping]]] = ..., attempts_used: _Optional[int] = ...) -> None: ...

class BlockRequest(_message.Message):
    __slots__ = ("cids", "heads_only", "wait_ms", "root")
    CIDS_FIELD_NUMBER: _ClassVar[int]
    HEADS_ONLY_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    cids: _containers.RepeatedScalarFieldContainer[str]
    heads_only: bool
    wait_ms: int
    root: str
    def __init__(self, cids: _Optional[_Iterable[str]] = ..., heads_only: _Optional[bool] = ..., wait_ms: _Optional[int] = ..., root: _Optional[str] = ...) -> None: ...

class BlockHead(_message.Message):
    __slots__ = ("cid", "found", "size_bytes", "fetching", "coming")
    CID_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHING_FIELD_NUMBER: _ClassVar[int]
    COMING_FIELD_NUMBER: _ClassVar[int]
    cid: str
    found: bool
    size_bytes: int
    fetching: bool
    coming: bool
    def __init__(self, cid: _Optional[str] = ..., found: _Optional[bool] = ..., size_bytes: _Optional[int] = ..., fetching: _Optional[bool] = ..., coming: _Optional[bool] = ...) -> None: ...

class BlockReply(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockHead]
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockHead, _Mapping]]] = ...) -> None: ...

class PeerRecord(_message.Message):
    __slots__ = ("member_id", "peer_id", "multiaddrs", "version_cid", "throughput", "expires_ms", "stage")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    MULTIADDRS_FIELD_NUMBER: _ClassVar[int]
    VERSION_CID_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    peer_id: str
    multiaddrs: _containers.RepeatedScalarFieldContainer[str]
    version_cid: str
    throughput: float
    expires_ms: int
    stage: int
    def __init__(self, member_id: _Optional[str] = ..., peer_id: _Optional[str] = ..., multiaddrs: _Optional[_Iterable[str]] = ..., version_cid: _Optional[str] = ..., throughput: _Optional[float] = ..., expires_ms: _Optional[int] = ..., stage: _Optional[int] = ...) -> None: ...

class CoordinatorRecord(_message.Message):
    __slots__ = ("addresses", "bootstrap_multiaddrs", "expires_ms")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_MULTIADDRS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    bootstrap_multiaddrs: _containers.RepeatedScalarFieldContainer[str]
    expires_ms: int
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., bootstrap_multiaddrs: _Optional[_Iterable[str]] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class RelayHop(_message.Message):
    __slots__ = ("type", "reservation", "limit", "status")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESERVE: _ClassVar[RelayHop.Type]
        CONNECT: _ClassVar[RelayHop.Type]
        STATUS: _ClassVar[RelayHop.Type]
    RESERVE: RelayHop.Type
    CONNECT: RelayHop.Type
    STATUS: RelayHop.Type
    class Slot(_message.Message):
        __slots__ = ("expire", "addrs", "voucher")
        EXPIRE_FIELD_NUMBER: _ClassVar[int]
        ADDRS_FIELD_NUMBER: _ClassVar[int]
        VOUCHER_FIELD_NUMBER: _ClassVar[int]
        expire: int
        addrs: _containers.RepeatedScalarFieldContainer[bytes]
        voucher: bytes
        def __init__(self, expire: _Optional[int] = ..., addrs: _Optional[_Iterable[bytes]] = ..., voucher: _Optional[bytes] = ...) -> None: ...
    class Limit(_message.Message):
        __slots__ = ("duration", "data")
        DURATION_FIELD_NUMBER: _ClassVar[int]
        DATA_FIELD_NUMBER: _ClassVar[int]
        duration: int
        data: int
        def __init__(self, duration: _Optional[int] = ..., data: _Optional[int] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    type: RelayHop.Type
    reservation: RelayHop.Slot
    limit: RelayHop.Limit
    status: int
    def __init__(self, type: _Optional[_Union[RelayHop.Type, str]] = ..., reservation: _Optional[_Union[RelayHop.Slot, _Mapping]] = ..., limit: _Optional[_Union[RelayHop.Limit, _Mapping]] = ..., status: _Optional[int] = ...) -> None: ...

class ListMembers(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BanMember(_message.Message):
    __slots__ = ("member_id", "reason")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    reason: str
    def __init__(self, member_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PardonMember(_message.Message):
    __slots__ = ("member_id",)
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    def __init__(self, member_id: _Optional[str] = ...) -> None: ...

class Invite(_message.Message):
    __slots__ = ("uses", "expires_s", "operator")
    USES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    uses: int
    expires_s: float
    operator: str
    def __init__(self, uses: _Optional[int] = ..., expires_s: _Optional[float] = ..., operator: _Optional[str] = ...) -> None: ...

class RevokeInvitation(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ManageRequest(_message.Message):
    __slots__ = ("list", "ban", "pardon", "invite", "revoke")
    LIST_FIELD_NUMBER: _ClassVar[int]
    BAN_FIELD_NUMBER: _ClassVar[int]
    PARDON_FIELD_NUMBER: _ClassVar[int]
    INVITE_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    list: ListMembers
    ban: BanMember
    pardon: PardonMember
    invite: Invite
    revoke: RevokeInvitation
    def __init__(self, list: _Optional[_Union[ListMembers, _Mapping]] = ..., ban: _Optional[_Union[BanMember, _Mapping]] = ..., pardon: _Optional[_Union[PardonMember, _Mapping]] = ..., invite: _Optional[_Union[Invite, _Mapping]] = ..., revoke: _Optional[_Union[RevokeInvitation, _Mapping]] = ...) -> None: ...

class ManageReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
