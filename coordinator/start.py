"""How a coordinator's state comes to be: folded from its journal, and fixed by the run file at the first start."""

from __future__ import annotations

from pathlib import Path

from common.errors import Code, HocketError
from coordinator.core import Core
from coordinator.dataset import import_dataset
from coordinator.journal import Journal
from coordinator.model_choice import choose_model, stage_bytes
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from swarm.blocks import BlockStore


def fold(journal: Journal) -> RunState:
    """The state that all events of a journal give.

    Raises:
        HocketError: STATE_UNREADABLE for an event that is not what this software wrote.
    """
    state = RunState()
    for event in journal.events():
        try:
            state.apply(event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise journal.damaged(event.seq) from error
    return state


def found(core: Core, config: RunConfig, text: str, folder: Path, store: BlockStore) -> None:
    """The first start fixes the run; later ones must bring the same run file, but for where the coordinator is.

    Args:
        config, text: the run file. folder: that its paths are relative to. store: takes the dataset in.

    Raises:
        HocketError: RUN_FILE_INVALID for another run file than the first; those of `import_dataset` and `choose_model`.
    """
    state = core.state
    if state.run_id:
        if not RunConfig.parse(state.run_toml).same_run(config):
            raise HocketError(
                Code.RUN_FILE_INVALID, f"it differs from the one that run {state.run_id} was started with",
                remedy="use the first run file, or another --state-dir for another run",
            )  # fmt: skip
        return
    dataset = import_dataset(config.data.manifest, config.data.languages, store, relative_to=folder)
    model = choose_model(config, dataset.manifest)
    core.emit(
        "created", run_id=config.run.id, run_toml=text, stages=config.model.stages,
        model_config=model.model_dump(mode="json"), dataset=dataset.record(),
        stage_bytes=stage_bytes(config, model, dataset.manifest),
    )  # fmt: skip
