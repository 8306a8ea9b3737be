"""Mistakes at `rlvr train`: options, the mixture, the model."""

import json
import shutil

from tests.mistakes.case import Case

SMALL = (
    "steps=2 groups_per_step=2 'sampling={samples: 4, max_tokens: 16}' learner.cpu_threads=1 checkpoint_every=1 "
    "'actors.engine={max_model_len: 128, max_num_seqs: 16, cpu_threads: 1}'"
)
RUN = f"rlvr train quickstart --mixture {{mixture}} --model {{model}} --folder {{here}}/run {SMALL}"
OWN = RUN.replace("{model}", "{here}/model")


REFUSAL = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
"""The beginning of a chat template that takes no system message."""


def copied(change):
    """A step that copies the model into the case's folder and changes the copy."""

    def prepare(here, model, mixture):
        shutil.copytree(model, here / "model")
        change(here / "model")

    return prepare


def edited(name, **changes):
    """A change of a model: keys of one of its JSON files; None takes a key away."""

    def change(folder):
        content = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return copied(change)


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:20_000])


def without_template(folder):
    (folder / "chat_template.jinja").unlink(missing_ok=True)


def mixture_of(content, role="user"):
    """A step that writes another mixture, of one prompt."""

    def prepare(here, model, mixture):
        from tasks.tables.parquet import build_table, read_table, write_table
        from tasks.tables.schemas import MIXTURE

        rows = read_table(mixture, MIXTURE).to_pylist()
        rows[0]["messages"] = [{"role": role, "content": content}, *rows[0]["messages"]][: 2 if role != "user" else 1]
        write_table(here / "other.parquet", build_table(rows, MIXTURE, "mixture"), MIXTURE)
        shutil.copytree(model, here / "model")
        if role == "system":
            path = here / "model" / "chat_template.jinja"
            refusal = (
                "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
            )
            path.write_text(refusal + path.read_text())

    return prepare


OTHER = OWN.replace("{mixture}", "{here}/other.parquet")

CASES = (
    Case(
        "the mixture does not exist",
        RUN.replace("{mixture}", "{here}/nothing.parquet"),
        ("nothing.parquet",),
        status=2,
    ),
    Case(
        "the mixture is not Parquet",
        RUN.replace("{mixture}", "{here}/some.parquet"),
        ("some.parquet",),
        files={"some.parquet": "text"},
    ),
    Case("the mixture is a folder", RUN.replace("{mixture}", "{here}"), ("{here}",), status=2),
    Case(
        "the model does not exist",
        RUN.replace("{model}", "{here}/nothing"),
        ("{here}/nothing",),
        status=2,
        sampled=True,
    ),
    Case("a date stands for a number", f"{RUN} steps=2024-01-01", ("steps", "2024-01-01")),
    Case("a value is not YAML", f"{RUN} sampling='{{'", ("sampling",)),
    Case("an option has no value", f"{RUN} steps", ("'steps'", "KEY=VALUE")),
    Case("an option does not exist", f"{RUN} clip=0.3", ("clip", "unknown key")),
    Case("the model's weights are cut", OWN, ("{here}/model",), prepare=copied(cut)),
    Case(
        "the model's config is not JSON",
        OWN,
        ("{here}/model", "config.json"),
        prepare=copied(lambda folder: (folder / "config.json").write_text("{")),
    ),
    Case("the model has no chat template", OWN, ("chat template",), prepare=copied(without_template)),
    Case(
        "the model has no tokenizer",
        OWN,
        ("{here}/model", "tokenizer"),
        prepare=copied(lambda folder: [file.unlink() for file in folder.glob("tokenizer*")]),
    ),
    Case(
        "the model's architecture is not known",
        OWN,
        ("no_such",),
        prepare=edited("config.json", model_type="no_such", architectures=["NoSuchModelForCausalLM"]),
    ),
    Case("a prompt is longer than the context", OTHER, ("max_model_len", "128"), prepare=mixture_of("sea " * 500)),
    Case(
        "a template refuses a prompt",
        OTHER,
        ("System role not supported", "test"),
        prepare=mixture_of("Be brief.", "system"),
    ),
    Case(
        "the context is longer than the model's",
        RUN.replace("max_model_len: 128", "max_model_len: 4096"),
        ("max_model_len", "512"),
    ),
    Case(
        "the engine does not serve the model",
        OWN,
        ("head",),
        prepare=edited("config.json", head_dim=16, num_attention_heads=8, num_key_value_heads=4),
    ),
    Case("there are fewer cores than ranks", f"{RUN} learner.ranks=64", ("cluster.node.cpu", "65")),
    Case("a pod's option is misspelt", f"{RUN} 'cluster.node={{gpu: 1}}'", ("cluster.node.gpu", "'gpus'")),
    Case(
        "a data file for the judge does not exist",
        f"{RUN} --data {{here}}/nothing.yaml",
        ("nothing.yaml",),
    ),
)
