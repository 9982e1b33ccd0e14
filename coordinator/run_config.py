"""The run file: what one training run is, read from TOML and checked in full before anything starts."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.errors import Code, HocketError
from swarm.ipfs_fallback import MAX_GATEWAYS, gateway_address
from swarm.ipfs_http import base_url

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)]


def _address(address: str) -> str:
    """An address of IPFS without the slash at its end; empty: none."""
    try:
        return base_url(address) if address else ""
    except HocketError as error:
        raise ValueError(error.detail) from error


def _gateway(address: str) -> str:
    """An address that members will take from a stranger."""
    try:
        return gateway_address(address)
    except HocketError as error:
        raise ValueError(error.detail) from error


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSection(_Section):
    """`[run]`: the run's name, and the seed from which every random draw of the run derives."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    seed: int = Field(default=0, ge=0, lt=2**63)


class ModelSection(_Section):
    """`[model]`: a preset of the model and the number of stages that it is cut into.

    `stage_memory_mib`, where given, is what each stage may take of its card, in order: the model is cut to fit.
    """

    preset: str
    stages: int = Field(ge=1, le=256)
    stage_memory_mib: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _one_a_stage(self) -> ModelSection:
        if self.stage_memory_mib and len(self.stage_memory_mib) != self.stages:
            raise ValueError(f"stage_memory_mib has {len(self.stage_memory_mib)} values for {self.stages} stages")
        return self


class DataSection(_Section):
    """`[data]`: the signed dataset manifest (a file, its folder, or a CID in the block store).

    `languages`, where given, must be those of the manifest: a guard against the wrong dataset.
    """

    manifest: str = Field(min_length=1)
    languages: tuple[str, ...] = ()


class RoundsSection(_Section):
    """`[rounds]`: budgets in frames, the inner and outer optimizers, and when rounds start and close."""

    count: Positive
    frames_per_inner_step: Positive
    microbatches_per_inner_step: int = Field(default=4, gt=0, le=4096)
    inner_steps: Positive                                      # of each replica, in each round
    frame_target: int = Field(default=0, ge=0)                 # of a round, whoever is there; 0: from the inner steps
    inner_lr: float = Field(gt=0, le=10)
    lr_floor: float = Field(default=0.03, ge=0, le=1)          # share of the peak at the end of the cosine
    warmup_frames: int = Field(default=0, ge=0)
    total_frames: int = Field(default=0, ge=0)                 # length of the schedule; 0: from the rounds
    weight_decay: float = Field(default=0.02, ge=0, le=1)
    clip_norm: float = Field(default=1.0, gt=0)
    accumulation: Literal["ordered", "free"] = "free"
    outer_lr: float = Field(default=0.7, gt=0, le=10)
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    replicas_wanted: Positive = 1                              # of each stage before the first round starts
    gather_s: Seconds = 120.0                                  # or: every stage covered for so long
    evaluate: bool = True                                      # each version on the held-out set
    deadline_floor_s: Seconds = 20.0                           # the adaptive deadlines stay between these two
    deadline_ceiling_s: Seconds = 1800.0

    @model_validator(mode="after")
    def _ordered(self) -> RoundsSection:
        if self.deadline_floor_s > self.deadline_ceiling_s:
            raise ValueError("deadline_floor_s is above deadline_ceiling_s")
        return self


class AggregationSection(_Section):
    """`[aggregation]`: the rule, what comes before it, and how many replicas of one stage may lie: fewer where fewer came."""

    rule: Literal["centred_clipping", "trimmed_mean", "median", "geometric_median", "krum", "multi_krum", "mean"] = (
        "centred_clipping"
    )
    prepare: Literal["none", "bucketing", "mixing"] = "none"
    tolerate: int = Field(default=1, ge=0)


class AuditSection(_Section):
    """`[audit]`: how much of the replicas' work is recomputed. `rate` = 0: none of it; chains are checked all the same.

    A round of a member is audited with the chance `rate`: so many `microbatches` of its first inner step by a witness, and
    one of its inner steps by a referee. Of a new member the first `new_rounds` rounds are audited for certain. Of the inner
    steps of stage 0 the share `batches` is compared with the dataset, whoever takes them.
    """

    rate: float = Field(default=0.5, ge=0, le=1)
    new_rounds: int = Field(default=2, ge=0, le=1000)
    microbatches: int = Field(default=1, gt=0, le=64)
    canaries: float = Field(default=0.1, ge=0, le=1)           # passes with a known answer, of those that witnesses are asked for
    opening_s: Seconds = 60.0                                  # in which a live member shows what was drawn
    witness_s: Seconds = 60.0                                  # in which a witness answers
    batches: float = Field(default=1.0, ge=0, le=1)            # inner steps of stage 0 whose batch is compared with the dataset
    calibration: str = ""                                      # file of `hocket calibrate`: how far honest results lie apart


class MembershipSection(_Section):
    """`[membership]`: who may join, when a silent member is lost, who is kept ready, and how much of a stage one hand may have.

    Mode `open`: everyone who holds the ticket. `invited`: who shows an invitation of the organiser's. `listed`: who is in the
    file `list`, a member id a line. Once every stage has its `replicas_wanted`, the next `standbys` members hold the base of a
    stage until a replica is lost. `per_operator`, `per_range`: most members of one operator, or one range of public addresses, at
    each stage; 0: as many as the aggregation tolerates, and at least one.
    """

    mode: Literal["open", "invited", "listed"] = "open"
    list: str = ""
    silence_s: Seconds = 10.0
    max_members: Positive = 1024
    standbys: int = Field(default=0, ge=0, le=1024)
    per_operator: int = Field(default=0, ge=0)
    per_range: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _with_its_list(self) -> MembershipSection:
        if (self.mode == "listed") != bool(self.list):
            raise ValueError('mode = "listed" goes with list, the file of those who may join, and no other mode does')
        return self

    def caps(self, tolerate: int) -> tuple[int, int]:
        """Most members at one stage of one operator, and of one range of addresses."""
        least = max(tolerate, 1)
        return self.per_operator or least, self.per_range or least


class CheckpointSection(_Section):
    """`[checkpoint]`: what stays in the block store: the newest `keep` versions and the `best` ones by held-out loss.

    Each `every`-th version stays besides (0: none).
    """

    every: int = Field(default=0, ge=0)
    keep: int = Field(default=2, ge=2)
    best: int = Field(default=5, ge=0, le=1000)


_HOST_PORT = r"^(\[[0-9a-fA-F:]+\]|[^:\s]+):[0-9]{1,5}$"


WHERE = ("listen", "advertise", "peer_listen", "peer_advertise")


class NetworkSection(_Section):
    """`[network]`: where the coordinator listens, and what peers allow one another."""

    listen: str = Field(default="127.0.0.1:0", pattern=_HOST_PORT)
    advertise: tuple[str, ...] = ()                            # addresses put into the ticket; empty: the one listened on
    peer_listen: str = Field(default="", pattern=rf"^$|{_HOST_PORT}")  # of the bootstrap peer; empty: host of listen, any port
    peer_advertise: tuple[Annotated[str, Field(pattern=_HOST_PORT)], ...] = ()
    tls: bool = True
    wire: Literal["fp32", "bf16", "int8"] = "bf16"
    silence_s: Seconds = 4.0
    step_deadline_s: Seconds = 60.0
    attempts: int = Field(default=4, ge=1, le=64)

    @property
    def host(self) -> str:
        """The host of `listen`, without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host under which members reach the coordinator."""
        return (self.host, *(address.rpartition(":")[0].strip("[]") for address in self.advertise))

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @model_validator(mode="after")
    def _safe(self) -> NetworkSection:
        if self.port > 65535:
            raise ValueError("the port of listen is above 65535")
        if self.peer_advertise and not self.peer_listen:
            raise ValueError("peer_advertise needs peer_listen, as its port must be known")
        for address in (*self.peer_advertise, *([self.peer_listen] if self.peer_listen else [])):
            if not 0 < int(address.rpartition(":")[2]) < 65536:
                raise ValueError(f"the port of {address} is not in 1 to 65535")
        if not self.tls and self.host not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError("tls = false is allowed on the loopback interface only")
        if self.host in ("0.0.0.0", "::") and not self.advertise:
            raise ValueError("advertise must name the host:port that members reach, as listen names every interface")
        return self


class PreviewsSection(_Section):
    """`[previews]`: each `every`-th version, and the last, is measured and speaks some sentences (0: none).

    `codec` is a name or a folder and must be the dataset's. `sentences` are spoken in the dataset's first language; without any,
    built-in ones are, in each of its languages. The files of the newest `keep` listenings stay.
    """

    every: int = Field(default=10, ge=0)
    codec: str = Field(default="hocket-16k", min_length=1)
    sentences: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(default=(), max_length=20)
    keep: Positive = 5


class IpfsSection(_Section):
    """`[ipfs]`: the RPC of an IPFS node that versions and the dataset are pushed to, and a pinning service besides.

    Both are addresses; without `rpc` nothing is pushed. Members read this file, so no secret belongs here. `gateways` are for the
    members: they ask them for what no peer has.
    """

    rpc: Annotated[str, AfterValidator(_address)] = ""
    pinning: Annotated[str, AfterValidator(_address)] = ""
    gateways: tuple[Annotated[str, AfterValidator(_gateway)], ...] = Field(default=(), max_length=MAX_GATEWAYS)

    @model_validator(mode="after")
    def _from_the_node(self) -> IpfsSection:
        if self.pinning and not self.rpc:
            raise ValueError("pinning needs rpc, as the service fetches from the node")
        return self


class RunConfig(_Section):
    """One run file.

    Raises:
        HocketError: from `load` and `parse`: RUN_FILE_UNREADABLE, RUN_FILE_UNKNOWN_KEY, RUN_FILE_INVALID.
    """

    run: RunSection
    model: ModelSection
    data: DataSection
    rounds: RoundsSection
    aggregation: AggregationSection = AggregationSection()
    audit: AuditSection = AuditSection()
    membership: MembershipSection = MembershipSection()
    checkpoint: CheckpointSection = CheckpointSection()
    previews: PreviewsSection = PreviewsSection()
    network: NetworkSection = NetworkSection()
    ipfs: IpfsSection = IpfsSection()

    def same_run(self, other: RunConfig) -> bool:
        """Whether a run that was begun with this file can be gone on with under the other one.

        Only the places at which the coordinator is reached may differ: its machine may have got another address.
        """
        here = {key: getattr(self.network, key) for key in WHERE}
        return other.model_copy(update={"network": other.network.model_copy(update=here)}) == self

    @property
    def inner_terms(self) -> dict[str, Any]:
        """What recomputing a member's work depends on: each version says it, and evidence repeats it."""
        return {
            "seed": self.run.seed, "wire": self.network.wire, "weight_decay": self.rounds.weight_decay,
            "clip_norm": self.rounds.clip_norm, "stages": self.model.stages,
        }  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> tuple[RunConfig, str]:
        """Read a run file; returns the configuration and the text it was read from."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HocketError(Code.RUN_FILE_UNREADABLE, f"{path} ({error})") from error
        return cls.parse(text, name=str(path)), text

    @classmethod
    def parse(cls, text: str, *, name: str = "run file") -> RunConfig:
        """Check the text of a run file; `name` is used in errors."""
        try:
            return cls.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise HocketError(Code.RUN_FILE_UNREADABLE, f"{name} ({error})") from error
        except ValidationError as error:
            raise _first_fault(error, name) from error


def known_keys() -> list[str]:
    """Every key of a run file, as `section.key`."""
    keys: list[str] = []
    for section, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type) and issubclass(kind, BaseModel)
        keys += [f"{section}.{key}" for key in kind.model_fields]
    return keys


def nearest_key(unknown: str) -> str:
    """The known section or key that looks most like `unknown` (`section` or `section.key`)."""
    section, dot, key = unknown.partition(".")
    if not dot:
        return difflib.get_close_matches(section, list(RunConfig.model_fields), n=1, cutoff=0.0)[0]

    def likeness(known: str) -> float:
        known_section, _, known_key = known.partition(".")
        same_key = difflib.SequenceMatcher(None, key, known_key).ratio()
        return same_key + 0.25 * difflib.SequenceMatcher(None, section, known_section).ratio()

    return max(known_keys(), key=likeness)


def _first_fault(error: ValidationError, name: str) -> HocketError:
    faults = error.errors(include_url=False)
    fault = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return HocketError(Code.RUN_FILE_UNKNOWN_KEY, f"{key} in {name}; the nearest known key is {nearest_key(key)}")
    return HocketError(Code.RUN_FILE_INVALID, f"{key or 'file'} in {name}: {fault['msg']}")
