"""Mistakes in the three files, and in what they name."""

from tests.mistakes.case import Case

SOURCE = "{name: mine, domain: math, verifier: math, loader: {kind: jsonl, path: '{here}/rows.jsonl'}, "
COLUMNS = "columns: {prompt: question, ground_truth: answer}}"
HEAD = "name: mine\ndifficulty: null\n"
DATA = f"{HEAD}mixture: {{heldout: 1}}\nsources: [{SOURCE}{COLUMNS}]\n"
ROWS = "".join(f'{{"question": "What is {i} + 1?", "answer": "{i + 1}"}}\n' for i in range(8))
TALK = "{name: talk, domain: chat, verifier: chat_open, loader: {kind: topics, size: 4}}"

JUDGE = "verifiers: {judge: {model: some, url: 'http://127.0.0.1:9/v1'}}"


def recipe(text: str, **options) -> dict:
    """The command and file of a recipe with a mistake."""
    return {"command": "pyflyte --training {here}/mine.yaml", "files": {"mine.yaml": text}, **options}


def data(text: str, rows: str | bytes = ROWS, **more: str) -> dict:
    """The command and files of a data file with a mistake."""
    files = {"mine.yaml": text, "rows.jsonl": rows, **more}
    return {"command": "pyflyte --data {here}/mine.yaml", "files": files}


CASES = (
    # keys and values
    Case(
        "a key is misspelt",
        named=("mine.yaml", "learning_rate", "unknown key"),
        **recipe("extends: quickstart\nlearning_rate: 1"),
        sampled=True,
    ),
    Case("a value has another type", named=("steps", "'many'"), **recipe("extends: quickstart\nsteps: many")),
    Case(
        "a value is out of bounds",
        named=("sampling.samples", "at least 2"),
        **recipe("extends: quickstart\nsampling.samples: 1"),
    ),
    Case("a key occurs twice", named=("mine.yaml", "steps", "twice"), **recipe("steps: 2\nsteps: 3")),
    Case("it is not YAML", named=("mine.yaml", "line 2"), **recipe("extends: quickstart\nsampling: {samples: 4")),
    Case("the file is empty", named=("mine.yaml", "mapping"), **recipe("")),
    Case(
        "the file is binary",
        named=("mine.yaml", "utf-8"),
        command="pyflyte --training {here}/mine.yaml",
        files={"mine.yaml": bytes(range(256))},
    ),
    Case("the file does not exist", named=("nowhere.yaml",), command="pyflyte --training {here}/nowhere.yaml"),
    Case("the file that is extended does not exist", named=("other.yaml",), **recipe("extends: ./other.yaml")),
    Case(
        "a data file stands for a recipe",
        named=("mine.yaml", "sources"),
        command="pyflyte --training {here}/mine.yaml",
        files={"mine.yaml": DATA},
    ),
    Case(
        "an option of the command is misspelt", named=("--trainig",), command="pyflyte --trainig quickstart", status=2
    ),
    Case(
        "a temperature is a word",
        named=("sampling.temperature", "'hot'"),
        command="pyflyte --evaluation '{sampling: {temperature: hot}}'",
    ),
    # sources
    Case("no source is named", named=("sources",), **data(HEAD + "sources: []")),
    Case(
        "a verifier has another name",
        named=("'maths'", "math"),
        **data(DATA.replace("verifier: math", "verifier: maths")),
    ),
    Case(
        "a loader has another name",
        named=("kind", "'jsonlines'"),
        **data(DATA.replace("kind: jsonl", "kind: jsonlines")),
    ),
    Case(
        "a source's file does not exist",
        named=("mine", "nowhere.jsonl"),
        **data(DATA.replace("rows.jsonl", "nowhere.jsonl")),
    ),
    Case(
        "a column does not exist",
        named=("mine", "'asked'", "question"),
        **data(DATA.replace("prompt: question", "prompt: asked")),
    ),
    Case("a source's file is empty", named=("mine", "rows.jsonl"), **data(DATA, rows="")),
    Case(
        "a source's lines are not JSON", named=("mine", "rows.jsonl", "not valid JSON"), **data(DATA, rows="a,b\n1,2\n")
    ),
    Case(
        "a source's Parquet file is cut",
        named=("mine", "rows.parquet"),
        **data(
            DATA.replace("kind: jsonl, path: '{here}/rows.jsonl'", "kind: huggingface, files: '{here}/rows.parquet'"),
            **{"rows.parquet": b"PAR1 and then nothing"},
        ),
    ),
    Case(
        "a generator has another name",
        named=("'produkts'", "products"),
        **data(
            HEAD + "sources: [{name: mine, domain: math, verifier: math, "
            "loader: {kind: reasoning_gym, dataset: produkts, size: 4}}]"
        ),
    ),
    Case(
        "chat has no judge",
        named=("talk", "verifiers.judge"),
        **data(f"{HEAD}sources: [{TALK}]"),
    ),
    Case(
        "a reward function's module does not exist",
        named=("talk", "no_such_module.f"),
        **data(f"{HEAD}sources: [{TALK[:-1]}, rewards: [{{function: no_such_module.f}}]}}]\n{JUDGE}"),
        sampled=True,
    ),
    Case(
        "a reward function does not exist",
        named=("talk", "data_specs.rewards", "no_such"),
        **data(f"{HEAD}sources: [{TALK[:-1]}, rewards: [{{function: data_specs.rewards.no_such}}]}}]\n{JUDGE}"),
    ),
    Case(
        "a mixture's domain has no source",
        named=("mixture.domains", "'chat'", "math"),
        **data(DATA.replace("{heldout: 1}", "{heldout: 1, domains: {chat: {weight: 1}}}")),
    ),
    Case(
        "a mixture's source does not exist",
        named=("mixture.sources", "'yours'", "mine"),
        **data(DATA.replace("{heldout: 1}", "{sources: {yours: {weight: 1}}}")),
    ),
    Case(
        "all prompts are held out",
        named=("held out",),
        **data(DATA.replace("{heldout: 1}", "{heldout: 8, domains: {math: {heldout: 8}}}")),
    ),
    Case(
        "difficulty samples unlike training",
        named=("temperature",),
        **data(DATA.replace("difficulty: null", "difficulty: {sampling: {temperature: 0.5}}")),
    ),
    Case(
        "a judge does not answer",
        named=("verifiers.judge", "127.0.0.1:9"),
        **data(f"{HEAD}sources: [{TALK}]\n{JUDGE}"),
        sampled=True,
    ),
    # models
    Case(
        "a model's folder does not exist",
        named=("{here}/nothing",),
        **recipe("extends: quickstart\nmodel: {source: {kind: folder, path: '{here}/nothing'}}"),
    ),
    Case(
        "a model's folder has no weights",
        named=("{here}/model", "weights"),
        command="pyflyte --training {here}/mine.yaml",
        files={
            "mine.yaml": "extends: quickstart\nmodel: {source: {kind: folder, path: '{here}/model'}}",
            "model/config.json": "{}",
            "model/tokenizer_config.json": "{}",
        },
    ),
    Case(
        "a response fills the whole context",
        named=("sampling.max_tokens", "512"),
        **recipe("extends: quickstart\nsampling.max_tokens: 512"),
    ),
    # the hub
    Case(
        "the hub cannot be reached for data",
        named=("mine", "127.0.0.1:9"),
        **data(
            HEAD + "sources: [{name: mine, domain: math, verifier: math, "
            "loader: {kind: huggingface, dataset: "
            "openai/gsm8k, revision: main, config: main, split: train}, "
            "columns: {prompt: question, ground_truth: answer}}]"
        ),
    ),
    Case(
        "the hub cannot be reached for a model",
        named=("someone/a-model", "127.0.0.1:9"),
        **recipe("extends: quickstart\nmodel: {source: {kind: hub, name: someone/a-model, revision: main}}"),
    ),
    Case("the hub cannot be reached for a shipped recipe", named=("127.0.0.1:9",), **recipe("extends: olmo3_think_7b")),
)
"""Each is met by `pyflyte run`."""
