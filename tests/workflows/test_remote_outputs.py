"""Files and folders of an earlier execution, by the address that the console shows, which the client looks up."""

import pytest
from click.testing import CliRunner
from flyteidl.core import literals_pb2, types_pb2
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.tables.parquet import read_table, write_table
from tasks.tables.schemas import GRADED, MIXTURE
from tests.flyte.admin_stand_in import admin
from tests.mixing.test_mix import graded

EXECUTION = "flyte://v1/rlvr/development/a1b2c3"
SIZES = {"math": {"gsm": 12}}


@pytest.fixture
def backend(tmp_path):
    with admin(tmp_path) as made:
        yield made


def keep(backend, address, uri, dimensionality=types_pb2.BlobType.SINGLE):
    """Give an output's address a file or folder."""
    kind = literals_pb2.BlobMetadata(type=types_pb2.BlobType(dimensionality=dimensionality))
    blob = literals_pb2.Blob(metadata=kind, uri=str(uri))
    backend.outputs[address] = literals_pb2.Literal(scalar=literals_pb2.Scalar(blob=blob))


def mix(backend, address):
    command = ["run", "tasks/mixing/task.py", "mix_prompts", "--graded", address, "--spec", '{"heldout": 2}']
    done = CliRunner().invoke(main, ["--config", str(backend.config), *command])
    return done, " ".join(done.output.replace("│", " ").split())


def test_a_stage_runs_by_hand_on_the_output_of_an_execution(backend, own_cache):
    kept = write_table(own_cache / "selected.parquet", graded(SIZES), GRADED)
    keep(backend, f"{EXECUTION}/data/o/selected", kept)
    done, output = mix(backend, f"{EXECUTION}/data/o/selected")
    assert done.exit_code == 0, output
    [mixture] = own_cache.rglob("mixture.parquet")
    assert read_table(mixture, MIXTURE).num_rows == 10


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (f"{EXECUTION}/data/o/lost", "has no such output: missing entity of type execution"),
        (EXECUTION, "an output's address is flyte://v1/PROJECT/DOMAIN/EXECUTION/NODE/o/OUTPUT"),
        (f"{EXECUTION}/model/o/model", "is not a file, which is what this option takes"),
        (f"{EXECUTION}/data/o/number", "is not a file, which is what this option takes"),
    ],
)
def test_what_the_backend_does_not_have_is_one_sentence_before_anything_starts(backend, own_cache, address, said):
    keep(backend, f"{EXECUTION}/model/o/model", "s3://bucket/model", types_pb2.BlobType.MULTIPART)
    number = literals_pb2.Scalar(primitive=literals_pb2.Primitive(integer=3))
    backend.outputs[f"{EXECUTION}/data/o/number"] = literals_pb2.Literal(scalar=number)
    done, output = mix(backend, address)
    assert done.exit_code != 0
    assert address in output
    assert said in output
    assert "Traceback" not in output


@pytest.mark.long
def test_a_backend_that_does_not_answer_is_named(backend, own_cache):
    backend.config.write_text("admin:\n  endpoint: dns:///127.0.0.1:1\n  insecure: true\n")
    _, output = mix(backend, f"{EXECUTION}/data/o/selected")
    assert "does not answer" in output
    assert f"127.0.0.1:1 (admin.endpoint in {backend.config})" in output
    assert "Traceback" not in output
