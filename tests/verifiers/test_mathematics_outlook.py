"""What asks before it is computed, and that asking changes no verdict."""

import pytest

from tasks.verifiers import mathematics
from tasks.verifiers.mathematics import outlook


@pytest.mark.parametrize(
    "text",
    [
        "10^{10^{10}}",
        "9^9^9",
        "2^{2^{2008}}",
        "(10^{5})^{(2^{9})^{3}}",
        "2^{-10^{9}}",
        "3^{123456}",
        "1000000!",
        "(10!)!",
        "10!!",
        r"\sum_{k=1}^{n} \frac{1}{k}",
        r"\int_0^1 x dx",
        "+".join(f"x_{i}" for i in range(200)),
    ],
)
def test_what_looks_long(text):
    assert outlook.looks_long(text)


@pytest.mark.parametrize(
    "text",
    ["7", "x^2+y^2", "x^{2}+y^{3}", "e^{x^2}", "5^{2019}", "10!", r"\frac{x^2}{y^3}", r"\sqrt{2}^{3}", r"\intercal"],
)
def test_what_does_not(text):
    assert not outlook.looks_long(text)


def outlook_asks(monkeypatch, ask):
    monkeypatch.setattr(outlook._Listener, "ask", ask)


def test_asking_changes_no_verdict(monkeypatch):
    asked = []
    outlook_asks(monkeypatch, lambda: asked.append(1))
    assert mathematics.judge(r"\boxed{3^{2^{2}}}", "81").passed
    assert not mathematics.judge(r"\boxed{3^{2^{2}}}", "82").passed
    assert asked
    before = len(asked)
    assert mathematics.judge(r"\boxed{3^{2^{3}}}", "3^{2^{3}}").passed, "the same text is not computed"
    assert len(asked) == before


def test_what_is_given_up_is_judged_when_it_comes_again(monkeypatch):
    class GivenUp(BaseException):
        pass

    def refuse():
        raise GivenUp

    outlook_asks(monkeypatch, refuse)
    with pytest.raises(GivenUp):
        mathematics.judge(r"\boxed{5^{2^{2}}}", "625")
    outlook_asks(monkeypatch, None)
    assert mathematics.judge(r"\boxed{5^{2^{2}}}", "625").passed
