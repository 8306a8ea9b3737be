"""Verifiers of a user's own for the tests: a module of text, whose `judge` does what the ground truth asks of it."""

import os
import socket
import sys
from pathlib import Path

from tasks.verifiers import Score
from tasks.verifiers.scores import Reward

STATE = {"warm": False}


def check_ground_truth(ground_truth):
    if not isinstance(ground_truth, str):
        raise ValueError(f"want a text, got {ground_truth!r}")
    if ground_truth == "stumble":
        raise KeyError("fen")


def missing_resources(ground_truth):
    return ["a board"] if ground_truth == "needs a board" else []


def warm_up():
    STATE["warm"] = True


def judge(response, ground_truth, messages):
    act = ACTS.get(ground_truth)
    return float(ground_truth in response) if act is None else act(response, messages)


def fail(response, _):
    raise LookupError(f"no move in {response!r}")


def recurse(response, messages):
    return recurse(response, messages)


def spin(*_):
    while True:
        pass


def connect(*_):
    with socket.create_connection(("127.0.0.1", 9), 1):
        return 1


ACTS = {
    "half": lambda *_: 0.5,
    "warm": lambda *_: STATE["warm"],
    "question": lambda response, messages: float(messages[-1]["content"] in response),
    "score": lambda *_: Score(0.25, True, "three\nlines\nhere", rewards=(Reward("style", 2.0, 7),)),
    "cannot": lambda *_: Score.from_error("no engine"),
    "raise": fail,
    "deep": recurse,
    "exit": lambda *_: sys.exit(3),
    "text": lambda *_: "1.0",
    "none": lambda *_: None,
    "two": lambda *_: 2,
    "nan": lambda *_: float("nan"),
    "spin": spin,
    "eat": lambda *_: len(bytearray(1 << 40)),
    "network": connect,
    "write": lambda *_: Path("written").write_text("x"),
    "environment": lambda *_: float("RLVR_TEST_SETTING" in os.environ),
}
