"""Checks that servers answer and that checkers have their data, before a run spends money."""

from __future__ import annotations

import logging
import socket
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tasks.config.connection import is_loopback
from tasks.config.loading import SpecError, check_choice
from tasks.generation.config import EngineConfig
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile
from tasks.sourcing import ground_truths, loaders
from tasks.sourcing.columns import VERIFIERS_OF
from tasks.sourcing.files import Malformed
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError
from tasks.verifiers import VerifiersConfig, collect_verifiers, missing_resources

logger = logging.getLogger(__name__)

TIMEOUT = 5.0
"""Timeout for connecting to the endpoint, seconds."""

_PORTS = {"http": 80, "https": 443}

_WAYS_OUT = (
    "start an OpenAI-compatible server of {model} there, give verifiers.judge.url another address, or set it to null, "
    "so that the stages serve the model themselves (verifiers.judge.revision, server)"
)


def check_judge(verifiers: VerifiersConfig, where: str, *, on_this_machine: bool) -> None:
    """Connect to the endpoint `verifiers.judge.url`, if there is one.

    Args:
        verifiers: the options of the verifiers.
        where: the name of the data file, which begins the message.
        on_this_machine: whether the stages that call the judge also run on this machine, and not in separate pods.

    Raises:
        SpecError: the endpoint does not accept connections, or its address is only reachable from this machine and the
            stages run elsewhere.
    """
    url, judge = getattr(verifiers.judge, "url", None), verifiers.judge
    if judge is None or url is None:
        return
    option = f"{where}: verifiers.judge.url"
    _check_answers(url, option, "judge", _WAYS_OUT.format(model=judge.model), on_this_machine=on_this_machine)


def check_policy_server(engine: EngineConfig, where: str, *, on_this_machine: bool) -> None:
    """Connect to the server `engine.server`, if there is one.

    Args:
        engine: the options of difficulty's engine.
        where: the name of the data file, which begins the message.
        on_this_machine: whether rollouts are requested from this machine, and not from pods.

    Raises:
        SpecError: as `check_judge` raises it.
    """
    if (server := engine.server) is not None:
        ways_out = f"start an OpenAI-compatible server of {server.model} there, or leave engine.server out"
        option = f"{where}: difficulty.engine.server.url"
        _check_answers(server.url, option, "server", ways_out, on_this_machine=on_this_machine)


def _check_answers(url: str, option: str, what: str, ways_out: str, *, on_this_machine: bool) -> None:
    """Raise `SpecError` if nothing accepts a connection at `url`, or if a pod would connect to itself."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    begin = f"{option} = {url!r}"
    if not on_this_machine and is_loopback(host):
        raise SpecError(f"{begin}: on a cluster this is the pod itself, where no {what} runs; {ways_out}")
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # connections go through a proxy, and this machine cannot connect directly
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except OSError as error:
        raise SpecError(f"{begin}: no {what} answers ({error}); {ways_out}") from error


def report_unjudgeable(data: DataFile, first_rows: dict[str, list[loaders.Row]]) -> dict[str, int]:
    """Log the sources whose rows have constraints that need data or packages missing on this machine.

    The difficulty stage, which may run in another environment, drops such rows, and refuses a source if all of its rows
    are dropped.

    Args:
        data: the data file.
        first_rows: the first rows of its sources, by name.

    Returns:
        The number of such rows among the first rows of each source, by name. It is 0 for a source without any.
    """
    lacking = {source.name: 0 for source in data.used_sources}
    for source in data.used_sources:
        if "precise_if" not in source.verifiers:
            continue
        reasons = [
            reason for row in first_rows[source.name] if (reason := _find_missing(row, source, data)) is not None
        ]
        missing = [reason for reason in reasons if reason]
        lacking[source.name] = len(missing)
        if missing:
            common, times = Counter(missing).most_common(1)[0]
            logger.warning(
                "%s: source %r: %d of its first %d prompts cannot be scored on this machine; if difficulty lacks "
                "the same, such prompts are dropped: %s (%d times)",
                *(data.name, source.name, len(missing), len(reasons), common, times),
            )
    return lacking


def _find_missing(row: loaders.Row, source: SourceSpec, data: DataFile) -> str | None:
    """Return what this machine lacks for scoring a row, which may be an empty text, or None if the row is unusable."""
    if isinstance(row.content, Malformed):
        return None
    try:
        verifier, truth = ground_truths.graded(row.content, source)
    except UnusableError:
        return None
    if "precise_if" not in collect_verifiers(verifier, truth):
        return ""
    return ", ".join(missing_resources(verifier, truth, data.verifiers))


def check_reward_models(data: DataFile, benchmarks: Sequence[BenchmarkFile]) -> None:
    """Check that all reward models that are named are in the data file and vice versa, and that each has a model.

    Raises:
        SpecError: a reward model is unknown, is not used by any source or benchmark, or is neither a folder nor a hub
            id with a revision.
    """
    models = data.verifiers.reward_models
    named = {source.name: source.reward_models for source in data.sources}
    for benchmark in benchmarks:
        named[f"{benchmark.name} (a benchmark)"] = benchmark.source.reward_models
    for source, names in named.items():
        for name in names:
            where = f"{data.name}: source {source}: rewards (the models are in verifiers.reward_models)"
            check_choice(name, models, where, "reward model")
    for name, model in models.items():
        option = f"{data.name}: verifiers.reward_models.{name}"
        if not any(name in names for names in named.values()):
            raise SpecError(
                f"{option}: no source uses it as a reward: add {{reward_model: {name}}} to rewards, or leave it out"
            )
        if model.revision is None and not Path(model.model).is_dir():
            raise SpecError(f"{option}.model = {model.model!r}: neither a folder nor a hub id with a revision")


def check_has_judge(source: SourceSpec, data: DataFile) -> None:
    """Check that the data file has a judge if the source is a chat source, and that it supports the source's mode.

    Raises:
        SpecError: there is no judge, or it does not support the mode.
    """
    if source.verifiers & set(VERIFIERS_OF["chat"]) and data.verifiers.judge is None:
        raise SpecError(
            f"{data.name}: source {source.name!r}: chat needs a judge: give verifiers.judge (a model to serve, or the "
            "URL of an OpenAI-compatible endpoint)"
        )
    if source.mode == "pairwise" and getattr(data.verifiers.judge, "kind", "endpoint") != "endpoint":
        raise SpecError(
            f"{data.name}: source {source.name!r}: mode pairwise compares two answers, and the judge is a reward "
            "model, which scores one: give verifiers.judge of kind endpoint"
        )
