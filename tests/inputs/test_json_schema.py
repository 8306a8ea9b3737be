"""What editors are told of the files."""

import json

import jsonschema
import pytest

from tasks.config.loading import read_yaml
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, RECIPES, Recipe
from tasks.inputs.json_schema import FILES as FILES_OF_A_RUN
from tasks.inputs.json_schema import json_schema, write

SCHEMAS = RECIPES.parent / "schemas"
FOLDERS = (DATA_SPECS, RECIPES, EVALUATIONS, BenchmarkFile.folder)
FILES = sorted(path for folder in FOLDERS for path in folder.glob("*.yaml"))


def test_the_schemas_are_those_of_the_models(tmp_path):
    write(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (SCHEMAS / path.name).read_text(), "stale: make reference"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_names_its_schema_and_fulfils_it(path):
    first = path.read_text().partition("\n")[0]
    assert first.startswith("# yaml-language-server: $schema=")
    schema = json.loads((path.parent / first.partition("=")[2]).read_text())
    jsonschema.validate(read_yaml(path), schema)


@pytest.mark.parametrize(
    ("content", "accepted"),
    [
        ({"extends": "quickstart", "objective.clip_high": 0.3}, True),
        ({"extends": "quickstart", "clip_high": 0.3}, False),
        ({"steps": "many"}, False),
    ],
)
def test_an_editor_sees_unknown_keys_and_wrong_values(content, accepted):
    assert jsonschema.Draft202012Validator(json_schema(Recipe)).is_valid(content) == accepted


def test_every_option_of_the_files_has_a_description():
    for name in FILES_OF_A_RUN:
        schema = json.loads((SCHEMAS / f"{name}.json").read_text())
        for model, part in {name: schema, **schema.get("$defs", {})}.items():
            for option, about in part.get("properties", {}).items():
                is_described = about.get("description") or "$ref" in about or "const" in about
                assert is_described, f"{model}.{option} has no docstring"
