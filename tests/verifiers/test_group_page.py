"""The reward function of a group on the page of verifiers: its file is read as a user's, and ranks as it says."""

import json
import re

import yaml

from tasks.inputs.files import DataFile
from tasks.inputs.rewards import check_rewards
from tasks.sourcing import loaders
from tasks.verifiers import functions
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "verifiers.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
DATA = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_the_function_and_the_data_file_of_the_page_work(tmp_path, monkeypatch, caplog):
    (tmp_path / "my_ranks.py").write_text(PROGRAMS["my_ranks.py"])
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(1, 4)]
    (tmp_path / "my_rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = DataFile.model_validate(yaml.safe_load(DATA["my_sums.yaml"]))
    [source] = data.sources
    check_rewards(source, loaders.check(source), data)
    assert not caplog.messages
    truth = {"function": "my_ranks.shorter", "columns": {}, "group": True}
    judged = functions.judge(["It is 2.", "2", "It is two."], truth, None)
    assert [reward.value for reward in judged.rewards] == [0.5, 1.0, 0.0]  # of 8, 1 and 10 characters
