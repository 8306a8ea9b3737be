"""What judges responses is looked for before a run begins: an endpoint that answers, and the data of checkers."""

import json
import socket

import nltk
import pytest

from tasks.config.loading import SpecError
from tasks.generation.config import EngineConfig
from tasks.inputs.files import DataFile
from tasks.inputs.judges import check_judge, check_policy_server, report_unjudgeable
from tasks.sourcing.loaders import check
from tasks.verifiers import VerifiersConfig

SENTENCES = (["length_constraints:number_sentences"], [{"num_sentences": 2, "relation": "at least"}])
NO_COMMA = (["punctuation:no_comma"], [{}])


@pytest.fixture
def no_proxy(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)


def judged_at(url):
    return VerifiersConfig.model_validate({"judge": {"url": url, "model": "some/judge"}})


def test_an_endpoint_that_answers_is_accepted(no_proxy):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        check_judge(judged_at(url), "mine", on_this_machine=True)
        with pytest.raises(SpecError, match=r"mine: verifiers\.judge\.url = .*: on a cluster this is the pod itself"):
            check_judge(judged_at(url), "mine", on_this_machine=False)


def test_an_endpoint_where_nothing_answers_is_one_sentence_with_the_ways_out(no_proxy):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SpecError, match=r"no judge answers .*; start an OpenAI-compatible server of some/judge there"):
        check_judge(judged_at(f"http://localhost:{port}/v1"), "mine", on_this_machine=True)


def test_a_judge_that_the_stages_serve_and_no_judge_have_no_endpoint():
    check_judge(VerifiersConfig(), "mine", on_this_machine=False)
    check_judge(VerifiersConfig.model_validate({"judge": {"model": "initial"}}), "mine", on_this_machine=False)


def constraints(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    named = [{"prompt": f"Write {i}.", "instruction_ids": ids, "kwargs": args} for i, (ids, args) in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in named))
    loader = {"kind": "jsonl", "path": str(path)}
    source = {"name": "ifs", "domain": "precise_if", "verifier": "precise_if", "loader": loader}
    return DataFile.model_validate({"name": "mine", "sources": [source]})


def reported(data):
    return report_unjudgeable(data, {source.name: check(source) for source in data.sources})


def test_rows_that_need_nltk_data_are_counted_with_the_reason(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(nltk.data, "path", [])
    assert reported(constraints(tmp_path, SENTENCES, NO_COMMA, NO_COMMA)) == {"ifs": 1}
    [line] = caplog.messages
    assert "mine: source 'ifs': 1 of its first 3 prompts cannot be scored on this machine" in line
    assert "length_constraints:number_sentences needs the NLTK resource tokenizers/punkt_tab" in line


def test_rows_that_need_nothing_more_are_not_mentioned(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(nltk.data, "path", [])
    assert reported(constraints(tmp_path, NO_COMMA)) == {"ifs": 0}
    assert not caplog.messages


def test_a_server_of_the_policy_that_does_not_answer_is_named_before_anything_starts():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, and nothing listens
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        engine = EngineConfig.model_validate({"server": {"url": url, "model": "policy"}})
        with pytest.raises(SpecError, match=f"mine: difficulty.engine.server.url = '{url}': no server answers"):
            check_policy_server(engine, "mine", on_this_machine=True)
        with pytest.raises(SpecError, match="on a cluster this is the pod itself, where no server runs"):
            check_policy_server(engine, "mine", on_this_machine=False)
    check_policy_server(EngineConfig(), "mine", on_this_machine=False)
