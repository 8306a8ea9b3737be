"""Downloads the results of executions: `rlvr fetch`."""

from __future__ import annotations

import click

from tasks.commands.options import Steps, add_backend_options


@click.command()
@click.argument("execution")
@click.argument("outputs", nargs=-1)
@click.option("--step", "steps", type=Steps(), help="Of `responses`, only the files with this step or these steps.")
@add_backend_options
def fetch(
    execution: str,
    outputs: tuple[str, ...],
    steps: tuple[int, int] | None,
    config: str | None,
    project: str,
    domain: str,
) -> None:
    """Download the results of EXECUTION into a folder in outputs/.

    The folder has the layout of a local run. OUTPUTS are the names of some outputs; without them, all are downloaded.
    Outputs that an earlier call downloaded into that folder are kept and not downloaded again. `responses`, the
    files of training's responses, are only downloaded if they are named.
    """
    if steps is not None and "responses" not in outputs:
        raise click.UsageError("--step is for responses: name them after EXECUTION")
    from tasks.flyte import backend
    from tasks.reporting.fetching import fetch_outputs
    from tasks.storage.outputs import prevent_pruning

    with prevent_pruning(), backend.convert_errors():
        remote = backend.connect(project, domain, config)
        for output, path in fetch_outputs(remote, execution, outputs, steps):
            click.echo(f"{output:<22} {path}")
