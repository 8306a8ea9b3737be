"""Opens the rollouts of a run in a browser: `rlvr view`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tasks.commands.options import LATEST, Run, Steps

if TYPE_CHECKING:
    from tasks.view.selection import Selection

PROGRESS = 8
"""Number of lines about logs that are written, at most."""


@click.command()
@click.argument("run", default=LATEST, type=Run())
@click.option("--step", "steps", type=Steps(), help="Only training, and all responses of this step or these steps.")
@click.option(
    "--outcome",
    help="Only training, and groups with this outcome, such as zero_variance, of some steps if not of --step.",
)
@click.option("--benchmark", help="Only the evaluation, and all responses to this benchmark, such as heldout.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Write a folder of static files instead of a server.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port on 127.0.0.1.  [default: the first free from 7575]")
def view(
    run: Path,
    steps: tuple[int, int] | None,
    outcome: str | None,
    benchmark: str | None,
    bundle: Path | None,
    port: int | None,
) -> None:
    """Open the rollouts of RUN in a browser.

    Training, evaluation and the difficulty filter have some. RUN is a folder of results such as outputs/latest, or of a
    training run in outputs/runs. The viewer is that of Inspect (inspect-ai). The first call installs it into a separate
    environment.
    """
    from tasks.view import viewer
    from tasks.view.environment import ensure_environment
    from tasks.view.responses import ViewError, find_responses
    from tasks.view.selection import select

    if benchmark is not None and (steps is not None or outcome is not None):
        raise ViewError("--benchmark is about an evaluation, --step and --outcome are about training: give one of them")
    if bundle is not None:
        if port is not None:
            raise ViewError("--port is about a server, --bundle writes files instead: give one of them")
        viewer.check_replaceable(bundle)
    free = viewer.find_free_port(port)
    tables = find_responses(run)
    chosen = select(tables, steps, outcome, benchmark)
    folder = ensure_environment(lambda message: click.echo(message, err=True))
    with tempfile.TemporaryDirectory(prefix="rlvr-view-") as scratch:
        logs = Path(scratch, run.resolve().name or "run")  # the viewer shows this name
        viewer.write_logs(folder, tables, chosen.logs, logs, _Progress(chosen))
        click.echo(chosen.counts)
        for message in chosen.left_out:
            click.echo(f"left out    {message}")
        if bundle is not None:
            viewer.write_bundle(folder, logs, bundle)
            click.echo(f"bundle      {bundle} (a file server shows it: python -m http.server --directory {bundle})")
            return
        click.echo(f"open        http://{viewer.HOST}:{free} (ctrl-c ends it)")
        viewer.serve(folder, logs, free)


class _Progress:
    """Prints how many logs are written, at most `PROGRESS` times."""

    def __init__(self, chosen: Selection) -> None:
        self._total, self._done = len(chosen.logs), 0

    def __call__(self, path: str, responses: int) -> None:
        self._done += 1
        if self._done * PROGRESS // self._total > (self._done - 1) * PROGRESS // self._total:
            click.echo(f"{self._done:,} of {self._total:,} logs: {path}, {responses:,} responses", err=True)
