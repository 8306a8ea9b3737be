"""Storage and the hub are asked again after pauses, for errors that may pass alone."""

import pytest

from tasks.storage.retries import call_with_retries


def failing(times, error):
    attempts = []

    def call():
        attempts.append(1)
        if len(attempts) <= times:
            raise error
        return len(attempts)

    return call


def test_what_may_pass_is_tried_again_and_the_result_returned():
    assert call_with_retries(failing(2, ConnectionError("reset")), (0, 0), lambda error: True, "bucket") == 3


def test_the_last_attempt_raises_what_it_met():
    with pytest.raises(ConnectionError):
        call_with_retries(failing(3, ConnectionError("reset")), (0, 0), lambda error: True, "bucket")


def test_an_error_that_will_not_pass_is_raised_at_once():
    call = failing(1, PermissionError("denied"))
    with pytest.raises(PermissionError):
        call_with_retries(call, (0, 0), lambda error: not isinstance(error, PermissionError), "bucket")
    assert call() == 2


def test_a_person_reads_of_the_first_retry_alone(caplog):
    call_with_retries(failing(3, ConnectionError("reset")), (0, 0, 0), lambda error: True, "bucket")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "bucket: reset; trying again in 0 s, at most 3 times"
    ]
