"""Finishes a run: writes the ledger as a table, and deletes all checkpoints except the last.

    policy/ ──► ledger.parquet ──► older checkpoints, and the policies that only they need, are deleted

A run folder has `ledger.parquet` if and only if its run has ended. An attempt removes it when it begins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.storage.durable import write_whole
from tasks.tables.parquet import write_table
from tasks.tables.schemas import LEDGER
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ledger import Ledger

logger = logging.getLogger(__name__)

TABLE = "ledger.parquet"
"""File name of the ledger's table in a run folder."""


def has_ended(folder: Path) -> bool:
    """Return whether the run in `folder` has ended, so that nothing is left to resume."""
    return (folder / TABLE).is_file()


def reopen(folder: Path) -> None:
    """Mark the run in `folder` as not ended. Called before an attempt changes its records."""
    (folder / TABLE).unlink(missing_ok=True)


async def end(folder: Path, ledger: Ledger, checkpoints: Checkpoints, lineage: Mapping[str, Any] | None) -> Path:
    """Write the ledger's table after the policy is written, and delete all checkpoints except the last.

    Returns the path of the table.

    Args:
        folder: the run folder.
        ledger: its ledger.
        checkpoints: its checkpoints.
        lineage: lineage of the run, for the table's footer.

    Raises:
        LeaseLostError: another attempt has taken over the run.
    """
    with write_whole(folder / TABLE) as partial:
        write_table(partial, ledger.table(), LEDGER, lineage)
    try:
        await checkpoints.keep_last(folder / "policies")
    except OSError as error:  # they only cost space
        logger.warning("older checkpoints in %s were not deleted: %s", folder, error)
    return folder / TABLE
