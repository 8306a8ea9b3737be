"""Mistakes at the commands beside the pipeline: plan, check, compare, trace."""

from tests.mistakes.case import Case

CASES = (
    Case("a recipe has another name", "rlvr plan quickstarts", ("quickstarts: no such file", "'quickstart'")),
    Case("a recipe is a mapping that does not end", "rlvr plan quickstart x={", ("x",)),
    Case("a GPU has another name", "rlvr plan quickstart --gpu H1000", ("H1000", "H100"), status=2),
    Case(
        "a model's shape is not known",
        "rlvr plan {here}/mine.yaml",
        ("the shape of nothing", "--config"),
        files={"mine.yaml": "extends: quickstart\nmodel: {source: {kind: hub, name: nobody/nothing, revision: main}}"},
    ),
    Case(
        "a model's shape is not JSON",
        "rlvr plan quickstart --config {here}/config.json",
        ("config.json",),
        files={"config.json": "{"},
    ),
    Case("a checked model does not exist", "rlvr doctor model-check {here}/nothing", ("nothing",)),
    Case(
        "a compared mixture does not exist",
        "rlvr diff {here}/a.parquet {here}/b.parquet",
        ("a.parquet",),
        status=2,
    ),
    Case(
        "a compared mixture is not Parquet",
        "rlvr diff {here}/a.parquet {mixture}",
        ("a.parquet",),
        files={"a.parquet": "text"},
    ),
    Case("a run's folder does not exist", "rlvr trace 123 --run {here}/nothing", ("nothing",)),
    Case("a prompt is named in no way", "rlvr trace", ("--source",)),
)
