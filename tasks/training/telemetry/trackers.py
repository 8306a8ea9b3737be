"""Logs metrics to Weights & Biases and MLflow from separate processes that follow `metrics.jsonl`.

    driver ── writes ──► metrics.jsonl ── read once a second by ──► one process per tracker ──► its service

A tracker never ends or delays training: an error in it prints one line on the terminal, and at the run's end it has
`FLUSH_SECONDS` to send the rest. The name of the run folder is the name of the run in the service, so a resumed run
continues there. A step that was sent is not sent again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import netrc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tasks.config.nested_values import leaves
from tasks.failures import MistakeError

PROJECT = "rlvr-flyte"
"""Default W&B project and MLflow experiment, unless their environment variables name others."""
FLUSH_SECONDS = 30.0
"""Seconds that a tracker has after a run's end to send the rest of its metrics."""
POLL_SECONDS = 1.0
"""Interval in seconds at which `metrics.jsonl` is read."""
_ENDED_WELL = b"ended well\n"
_USER_INFO = re.compile(r"//[^/@\s]+@")
_NAME = re.compile(r"[^\w.: -]")


class TrackerError(MistakeError):
    """A tracker cannot be used in this environment, because its package, key or address is missing."""


class Tracker(Protocol):
    """A client of one tracking service (Weights & Biases, MLflow), for one run."""

    def find_next_step(self) -> int:
        """Return the first step that the service has not received."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send the metrics of one step."""

    def finish(self, ended_well: bool) -> None:
        """Send the rest, and report whether the run ended well."""


class WandbTracker:
    """A run of Weights & Biases, with the run folder's name as its id."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=folder.name,
            name=folder.name,
            resume="allow",
            dir=str(folder),
            config=config,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def find_next_step(self) -> int:
        return self._run.step if self._run.resumed else 0

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step, commit=True)

    def finish(self, ended_well: bool) -> None:
        self._run.finish(exit_code=0 if ended_well else 1)


class MlflowTracker:
    """A run of MLflow, identified by a tag with the run folder's name, because MLflow generates the run ids."""

    TAG = "rlvr.run"

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        earlier = self._client.search_runs([experiment_id], f"tags.`{self.TAG}` = '{folder.name}'", max_results=1)
        if earlier:
            self._id = earlier[0].info.run_id
            self._seen = list(earlier[0].data.metrics)
            self._client.update_run(self._id, "RUNNING")
        else:
            run = self._client.create_run(experiment_id, tags={self.TAG: folder.name}, run_name=folder.name)
            self._id, self._seen = run.info.run_id, []
            params = [Param(key, str(value)[:6000]) for key, value in leaves(config)]
            for start in range(0, len(params), 100):  # MLflow's limit per call
                self._client.log_batch(self._id, params=params[start : start + 100])

    def find_next_step(self) -> int:
        histories = (self._client.get_metric_history(self._id, name) for name in self._seen)
        return max((metric.step for history in histories for metric in history), default=-1) + 1

    def log(self, metrics: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(
            self._id,
            # MLflow accepts no other characters, and a slash only if no other name turns it into a folder.
            metrics=[Metric(_NAME.sub(".", name), value, now, step) for name, value in metrics.items()],
        )

    def finish(self, ended_well: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if ended_well else "FAILED")


TRACKERS: dict[str, type[WandbTracker] | type[MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
"""Trackers by their name in the option `trackers`."""


def check(trackers: Sequence[str]) -> None:
    """Raise `TrackerError` for a tracker whose package, key or address is missing in this environment."""
    for name in trackers:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, such as the one W&B creates, is not a package
            raise TrackerError(f"trackers: {name} is not installed here: pip install '.[{name}]', or leave it out")
    if "wandb" in trackers and os.environ.get("WANDB_MODE", "online") == "online" and not _has_wandb_key():
        raise TrackerError(
            "trackers: wandb needs a key: WANDB_API_KEY (on a cluster a secret, by RLVR_SECRETS), or wandb login, or "
            "WANDB_MODE=offline"
        )
    if "mlflow" in trackers and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise TrackerError("trackers: mlflow needs the address of its server: MLFLOW_TRACKING_URI")


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return False


@contextlib.contextmanager
def follow_run(
    trackers: Sequence[str], folder: Path, config: dict[str, Any], *, flush_seconds: float = FLUSH_SECONDS
) -> Iterator[None]:
    """Send a run's metrics to `trackers` while the block runs, each from a separate process.

    Args:
        trackers: names in `TRACKERS`.
        folder: the run folder, with the metrics of the steps before a resume.
        config: the run's options, as JSON values.
        flush_seconds: seconds that a tracker has after the block to send the rest. Then its process is killed.
    """
    processes = [_start_tracker(name, folder, config, flush_seconds) for name in dict.fromkeys(trackers)]
    ended = b""
    try:
        yield
        ended = _ENDED_WELL
    finally:
        for process in processes:
            _send(process, ended)
            _close(process)
        deadline = time.monotonic() + flush_seconds + 5.0  # it should exit earlier
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start_tracker(name: str, folder: Path, config: dict[str, Any], flush_seconds: float) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "tasks.training.telemetry.trackers", name, str(folder), str(flush_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # only the driver gets Ctrl-C; the end of standard input shows that it ended
    )
    _send(process, json.dumps(config).encode() + b"\n")
    return process


def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has failed and printed the reason
        process.stdin.write(line)
        process.stdin.flush()


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


class _End:
    """Detects the end of the driver on standard input, and exits this process some time later.

    Attributes:
        came: set when the driver has ended.
        well: True if its run ended well.
    """

    def __init__(self, name: str, flush_seconds: float) -> None:
        self.came = threading.Event()
        self.well = False
        self._name, self._seconds = name, flush_seconds
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self.well = sys.stdin.buffer.read() == _ENDED_WELL
        self.came.set()
        time.sleep(self._seconds)
        _print(
            f"{self._name} did not accept all metrics within {self._seconds:g} s of the run's end; the rest is not sent"
        )
        os._exit(1)


def follow(name: str, folder: Path, flush_seconds: float) -> None:
    """Run the process of one tracker: read the options from standard input, then send steps until the driver ends."""
    config = json.loads(sys.stdin.buffer.readline())
    end = _End(name, flush_seconds)
    sent = folder / "trackers" / f"{name}.json"
    try:
        tracker: Tracker = TRACKERS[name](folder, config)
        step = max(tracker.find_next_step(), json.loads(sent.read_text())["next_step"] if sent.exists() else 0)
        sent.parent.mkdir(exist_ok=True)
        for row in _follow_rows(folder / "metrics.jsonl", end.came):
            if row["step"] >= step:
                tracker.log({key: value for key, value in row.items() if key != "step"}, int(row["step"]))
                step = int(row["step"]) + 1
                sent.write_text(json.dumps({"next_step": step}))
        tracker.finish(end.well)
    except Exception as error:
        first = _USER_INFO.sub("//", str(error).partition("\n")[0])
        _print(f"{name} gets no more metrics of this run, which continues without it: {type(error).__name__}: {first}")
    sys.stderr.flush()
    os._exit(0)  # does not wait for threads and exit handlers of the package


def _follow_rows(metrics: Path, ended: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the steps in the file, including steps that are appended, until the driver has ended and all are read."""
    with metrics.open() as file:
        part = ""
        while True:
            last = ended.is_set()
            while line := file.readline():
                part += line
                if part.endswith("\n"):
                    yield json.loads(part)
                    part = ""
            if last:
                return
            ended.wait(POLL_SECONDS)


def _print(sentence: str) -> None:
    print(f"trackers: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    follow(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
