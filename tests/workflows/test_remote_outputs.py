"""Files and folders of an earlier execution, by the address that the console shows, which the client looks up."""

from concurrent import futures

import grpc
import pytest
from click.testing import CliRunner
from flyteidl.core import literals_pb2, types_pb2
from flyteidl.service import dataproxy_pb2, dataproxy_pb2_grpc
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.tables.parquet import read_table, write_table
from tasks.tables.schemas import GRADED, MIXTURE
from tests.mixing.test_mix import graded

EXECUTION = "flyte://v1/rlvr/development/a1b2c3"
SIZES = {"math": {"gsm": 12}}


class Backend(dataproxy_pb2_grpc.DataProxyServiceServicer):
    """Knows the outputs of one execution, by address."""

    def __init__(self) -> None:
        self.outputs: dict[str, literals_pb2.Literal] = {}

    def keep(self, address, uri, dimensionality=types_pb2.BlobType.SINGLE):
        kind = literals_pb2.BlobMetadata(type=types_pb2.BlobType(dimensionality=dimensionality))
        blob = literals_pb2.Blob(metadata=kind, uri=str(uri))
        self.outputs[address] = literals_pb2.Literal(scalar=literals_pb2.Scalar(blob=blob))

    def GetData(self, request, context):  # noqa: N802 the name of the call
        if request.flyte_url not in self.outputs:
            context.abort(grpc.StatusCode.NOT_FOUND, "missing entity of type execution")
        return dataproxy_pb2.GetDataResponse(literal=self.outputs[request.flyte_url])


@pytest.fixture
def backend(tmp_path):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    made = Backend()
    dataproxy_pb2_grpc.add_DataProxyServiceServicer_to_server(made, server)
    made.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    made.config = tmp_path / "config.yaml"
    made.config.write_text(f"admin:\n  endpoint: dns:///{made.endpoint}\n  insecure: true\n")
    yield made
    server.stop(None)


def mix(backend, address):
    command = ["run", "tasks/mixing/task.py", "mix_prompts", "--graded", address, "--spec", '{"heldout": 2}']
    done = CliRunner().invoke(main, ["--config", str(backend.config), *command])
    return done, " ".join(done.output.replace("│", " ").split())


def test_a_stage_runs_by_hand_on_the_output_of_an_execution(backend, own_cache):
    kept = write_table(own_cache / "selected.parquet", graded(SIZES), GRADED)
    backend.keep(f"{EXECUTION}/data/o/selected", kept)
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
    backend.keep(f"{EXECUTION}/model/o/model", "s3://bucket/model", types_pb2.BlobType.MULTIPART)
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
    assert "127.0.0.1:1 did not answer" in output
    assert "pyflyte --config FILE names another backend" in output
