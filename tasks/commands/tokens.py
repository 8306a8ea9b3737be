"""Writes a page with the tokens of a training step's responses: `rlvr tokens`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.commands.options import LATEST, Run


@click.command()
@click.argument("run", default=LATEST, type=Run())
@click.option("--step", required=True, type=click.IntRange(min=0), help="Number of the training step, from 0.")
@click.option("--prompt", default="", help="Only responses to the prompts whose ids begin so.")
@click.option(
    "--color",
    type=click.Choice(["difference", "advantage"]),
    default="difference",
    show_default=True,
    help="What the colour of a token shows: the difference of its log-probabilities under learner and engine, or the "
    "advantage of its response.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Model folder with the tokenizer, for a run that has exported no policy yet. By default the run's policy.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the page.  [default: tokens-step-N.html]",
)
def tokens(run: Path, step: int, prompt: str, color: str, model: Path | None, output: Path | None) -> None:
    """Write a page with responses of a step, token by token.

    RUN is a folder of results such as outputs/latest, or of a training run such as outputs/runs/NAME. The run has to
    keep tokens: keep_tokens of its recipe is the share of the groups that have them.
    """
    from tasks.token_page.decoding import TokenTexts
    from tasks.token_page.page import render
    from tasks.token_page.responses import find_tokenizer_folder, read_step

    read = read_step(run, step, prompt)
    texts = TokenTexts.from_model(model or find_tokenizer_folder(run, read.folder))
    output = output or Path(f"tokens-step-{step}.html")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(read, texts, by_advantage=color == "advantage"), encoding="utf-8")
    click.echo(f"page        {output}")
