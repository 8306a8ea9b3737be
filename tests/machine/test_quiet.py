"""Lines of other libraries that are dropped, and those that are not."""

import pytest

from tasks.machine.quiet import silence_retries


@pytest.mark.long
def test_rays_lines_about_calls_that_it_repeats_are_dropped_and_no_others(monkeypatch, capsys):
    from ray._private import worker

    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    silence_retries()
    silence_retries()
    retried = "Task score failed. There are infinite retries remaining, so the task will be retried. Error: gone"
    for lines in ([retried], ["disk is full"]):
        worker.print_to_stdstream({"lines": lines, "pid": "raylet", "is_err": False}, ignore_prefix=False)
    printed = capsys.readouterr().out
    assert "disk is full" in printed
    assert "retried" not in printed
