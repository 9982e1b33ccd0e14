"""What a member is told: the whole wanted state, for that member. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.assignment import Role
from coordinator.leases import Sizes
from coordinator.rounds import Phase
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from protocol.generated import hocket_pb2 as pb

_ROLES = {Role.REPLICA: pb.REPLICA, Role.STANDBY: pb.STANDBY}


def evaluator(state: RunState, config: RunConfig) -> str | None:
    """The one member that evaluates the base on the held-out set now: the first ready replica of stage 0; None: nobody need."""
    if not wants_evaluation(state, config) or state.phase not in (Phase.PREPARING, Phase.OPEN):
        return None
    ready = [[one for one in state.replicas(stage) if state.is_ready(one)] for stage in range(state.stages)]
    return ready[0][0].member if all(ready) else None


def wants_evaluation(state: RunState, config: RunConfig) -> bool:
    """Whether the held-out loss of the base is wanted and not known."""
    return config.rounds.evaluate and state.dataset["heldout_rows"] > 0 and state.base_cid not in state.heldout


def roster(state: RunState) -> pb.Roster:
    """Everyone who serves a stage or stands by for one: by stage, replicas before standbys, and member id."""
    placed = [(one.stage, one.role is Role.STANDBY, one.member, one) for one in state.members.values()
              if one.live and one.stage is not None]  # fmt: skip
    return pb.Roster(
        run_id=state.run_id,
        round=state.round,
        entries=[
            pb.RosterEntry(member_id=one.member, peer_id=one.peer_id, stage=one.stage, role=_ROLES[one.role],
                           generation=one.generation, operator=one.operator)
            for _, _, _, one in sorted(placed, key=lambda entry: entry[:3])
        ],
    )  # fmt: skip


def settings(state: RunState, config: RunConfig, sizes: Sizes) -> pb.RoundSettings:
    """The round's settings. Before the round is open its target is what it would be with the replicas there are."""
    rounds, network = config.rounds, config.network
    target_frames = state.target_frames
    if state.phase in (Phase.GATHERING, Phase.PREPARING):
        target_frames = sizes.target(rounds.inner_steps, max(len(state.replicas(0)), 1), rounds.frame_target)[1]
    return pb.RoundSettings(
        frames_per_inner_step=rounds.frames_per_inner_step,
        microbatches_per_inner_step=rounds.microbatches_per_inner_step,
        target_frames=target_frames,
        inner_lr_peak=rounds.inner_lr,
        frames_before=state.frames_counted,
        total_frames=rounds.total_frames or state.total_frames or rounds.count * target_frames,
        warmup_frames=rounds.warmup_frames,
        seed=config.run.seed,
        wire=network.wire,
        silence_s=network.silence_s,
        step_deadline_s=network.step_deadline_s,
        attempts=network.attempts,
        weight_decay=rounds.weight_decay,
        clip_norm=rounds.clip_norm,
        accumulation=rounds.accumulation,
        lr_floor=rounds.lr_floor,
    )


def view(state: RunState, config: RunConfig, sizes: Sizes, member: str, providers: Sequence[pb.PeerAddress]) -> pb.RunView:
    """The run as `member` is to see it."""
    return pb.RunView(
        revision=state.revision,
        phase=state.phase.value,
        round=state.round,
        base_cid=state.base_cid,
        roster=roster(state),
        settings=settings(state, config, sizes),
        providers=providers,
        stages=state.stages,
        reason=state.phase_reason,
        evaluate=evaluator(state, config) == member,
        gateways=config.ipfs.gateways,
    )
