"""Descriptions of options come from a module's syntax tree, and are those that pydantic finds in its own way."""

import subprocess
import sys

import pytest
from pydantic._internal import _docs_extraction, _fields

import tasks.inputs.files
import tasks.model_check.options  # noqa: F401
from tasks.config.descriptions import extract_docstrings
from tasks.config.loading import Config
from tests.paths import ROOT


def specifications(cls=Config):
    for below in cls.__subclasses__():
        yield below
        yield from specifications(below)


def test_every_option_has_the_description_that_pydantic_finds():
    ours = [cls for cls in specifications() if cls.__module__.startswith("tasks.") and "[" not in cls.__name__]
    assert len(ours) > 50
    for cls in ours:
        assert extract_docstrings(cls) == _docs_extraction.extract_docstrings_from_cls(cls, use_inspect=True), cls


def test_pydantic_calls_it():
    assert _fields.extract_docstrings_from_cls is extract_docstrings


def test_a_class_within_a_function_has_its_descriptions_as_well():
    class Here(Config):
        number: int = 3
        """A number."""

    assert Here.model_fields["number"].description == "A number."


@pytest.mark.long
def test_specifications_are_read_without_pandas():
    code = "import sys, flytekit.bin.entrypoint, tasks.inputs.files; assert 'pandas.core.frame' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
