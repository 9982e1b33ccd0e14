"""`hocket soak`: a small cluster that runs for hours while a worker is moved now and then; what each process holds must be flat.

In each stage one replica stays for good; of the others the one that came last is ended in every tenth round, stage by stage, and a
new one joins in its place. So everything that stays sees members come and go for as long as the soak lasts.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write
from common.stop import stop_signals
from simulations.actions import Action, seen_in
from simulations.cluster import Cluster
from simulations.flatness import BOUNDS, judge
from simulations.progress import Show
from simulations.simulate import SimulationSettings, prepare_data, run_file, start_workers
from simulations.usage import descendants, holding, start_ticks

logger = logging.getLogger(__name__)

__all__ = ["MoveProgress", "SoakSettings", "run_soak", "stop_signals", "verdicts"]
