"""Writes the files of an example: `rlvr new`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.failures import MistakeError

EXAMPLES = Path(__file__).parent / "examples"

NAMES = {
    "tutorial": "python make_rows.py, and then rlvr run --training my_recipe.yaml",
    "environment": "rlvr play counting.yaml 1 3 5",
    "minimal_loop": "python minimal_loop.py",
}
"""The examples, each with the commands to run in its folder."""


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--example", type=click.Choice(list(NAMES)), default="tutorial", show_default=True)
def new(folder: Path, example: str) -> None:
    """Write the files of an example into FOLDER.

    The tutorial has rows, a reward, a data file and a recipe. FOLDER is the working directory by default. Files that
    exist are not replaced.
    """
    sources = sorted(path for path in (EXAMPLES / example).iterdir() if path.is_file())
    if present := [path.name for path in sources if (folder / path.name).exists()]:
        raise MistakeError(f"{folder / present[0]} exists, and is not replaced: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        (folder / source.name).write_bytes(source.read_bytes())
        click.echo(f"written     {folder / source.name}")
    where = "" if folder == Path() else f"cd {folder}; "
    click.echo(f"next        {where}{NAMES[example]}")
