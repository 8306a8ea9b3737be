"""Reads and writes the controller's state in a checkpoint, `state.json`, and validates it when it is read."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from tasks.failures import MistakeError
from tasks.machine import precision
from tasks.storage.durable import write_whole

FORMAT = 5
"""Version of the checkpoint layout. It changes when the code cannot read checkpoints of earlier code any more."""

SEED_ADVICE = "`seed` with another value is a separate run"
"""End of a message that refuses a checkpoint. It names the option that begins another run."""


class OtherRunError(MistakeError):
    """A run folder contains a run that cannot be resumed with the given options or this code."""


class RunSetup(BaseModel):
    """The options, the code and the learner ranks under which a checkpoint was written (`identity.check_fits`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    """`FORMAT` of the code that wrote the checkpoint."""
    code: str
    """Digest of the code that wrote the checkpoint (`lineage.code_digest`)."""
    ranks: int
    """Number of learner ranks that saved their state."""
    zero_stage: int
    """ZeRO stage of these ranks."""
    dtype: precision.Dtype | precision.Auto
    """Dtype of the learner's weights."""
    options: dict[str, Any]
    """Value of every option on which the result depends, by dotted name."""
    chosen: list[str]
    """Dotted names of the options that differ from their default."""


class RunState(RunSetup):
    """The controller's state at a checkpoint: counters, lengths of the record files, and the state of the prompts.

    The groups in the window are stored separately, in `groups.parquet` (`saved_groups`).
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    version: int
    """Optimizer steps taken, which is the version of the policy."""
    elapsed: float
    """Seconds of work on this run, over all its attempts."""
    next_group: int
    """Number of the next group that is sampled."""
    prompts: Annotated[dict[str, Any], AfterValidator(deepcopy)]  # a snapshot: sampling continues during the write
    """State of the prompt stream (`PromptStream.state`)."""
    replays: dict[str, int]
    """Number of times that each group in the replay buffer was trained on again, by group number."""
    unrecorded: dict[str, int]
    """Numbers of responses and tokens that are not in any step's metrics yet (`StepCounters.unrecorded`)."""
    validated: dict[str, float]
    """Mean validation scores, by policy version."""
    policies: list[str]
    """Folders in `policies/` that resuming needs: the best validated policy, if there is one."""
    ledger_bytes: int
    """Length of `ledger.jsonl` in bytes. Resuming truncates the file to it."""
    journal_bytes: int
    """Length of `metrics.jsonl` in bytes, for its upload. Resuming truncates the file to `version` lines instead."""
    rollout_files: int
    """Number of files in `rollouts/`. Resuming removes later files."""

    @classmethod
    def begin(cls, setup: RunSetup) -> RunState:
        """Return the state of a run under `setup` that has taken no step."""
        return cls(
            **setup.model_dump(),
            version=0,
            elapsed=0.0,
            next_group=0,
            prompts={},
            replays={},
            unrecorded={},
            validated={},
            policies=[],
            ledger_bytes=0,
            journal_bytes=0,
            rollout_files=0,
        )

    @classmethod
    def read(cls, checkpoint: Path) -> RunState:
        """Return the state in the folder `checkpoint`.

        Raises:
            OtherRunError: the checkpoint has another format.
            ValueError: the file is missing or malformed. A run is not resumed from an incomplete checkpoint.
        """
        try:
            content = (checkpoint / "state.json").read_bytes()
            written = _WithFormat.model_validate_json(content).format
            if written == FORMAT:
                return cls.model_validate_json(content)
        except (OSError, ValidationError) as error:
            raise MistakeError(
                f"checkpoint {checkpoint}: state.json cannot be read: {_describe_error(error)}"
            ) from None
        raise OtherRunError(
            f"{checkpoint} has format {written}, and this code reads format {FORMAT}: continue with the code that "
            f"wrote it; {SEED_ADVICE}"
        )

    def write(self, checkpoint: Path) -> None:
        """Write the state into the folder `checkpoint`."""
        with write_whole(checkpoint / "state.json") as partial:  # its error names the path if the disk is full
            partial.write_text(self.model_dump_json())


class _WithFormat(BaseModel):
    """The only field that the states of all formats have."""

    format: int


def _describe_error(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in error.errors())
