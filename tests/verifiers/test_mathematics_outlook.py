"""What asks before it is computed, and that asking changes no verdict."""

import pytest
import sympy

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
        r"\begin{pmatrix}a&b\\c&d\end{pmatrix}^{-1}",
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


X, Y, Z = sympy.symbols("x y z")


@pytest.mark.parametrize(
    ("found", "terms"),
    [
        (X, (1, 1)),
        (X**1000, (1, 1)),
        (X + Y, (2, 1)),
        ((X + Y) ** 2, (3, 1)),
        ((X + Y) ** 5 * (Z + 1), (12, 1)),
        ((X + Y + Z) ** 3, (10, 1)),
        ((X + 1) / (Y + 2) ** 2, (2, 3)),
        (1 / (X + 1) + 1 / (Y + Z), (4, 4)),
        (sympy.sin((X + Y) ** 2), (3, 1)),
        (sympy.Eq(X + Y, (X + Z) ** 3), (4, 1)),
        (sympy.Interval(X + 1, 7), (2, 1)),
    ],
)
def test_terms_are_counted_as_by_hand(found, terms):
    assert outlook._terms(found) == terms


@pytest.mark.parametrize("found", [(X + Y) ** 9, (X + 1) ** 10 * (Y + 2) ** 4, (1 + sympy.sqrt(2)) ** 7, X**9 - 1])
def test_terms_are_those_of_the_expansion_at_least(found):
    expanded = len(sympy.Add.make_args(sympy.expand(found)))
    assert expanded <= outlook._terms(found)[0] < outlook.MANY_TERMS


@pytest.mark.parametrize(
    "found", [(X + 1) ** 100, (X + Y + Z) ** 30, (X + Y + Z) ** (10**9), sympy.Eq((X + 1) ** 99, Y)]
)
def test_what_has_many_terms(found):
    assert outlook.has_many_terms(found)


def outlook_asks(monkeypatch, ask):
    monkeypatch.setattr(outlook._Listener, "ask", ask)


def test_asking_changes_no_verdict(monkeypatch):
    asked = []
    outlook_asks(monkeypatch, lambda: asked.append(1))
    assert mathematics.judge(r"\boxed{3^{2^{2}}}", "81").passed
    assert not mathematics.judge(r"\boxed{3^{2^{2}}}", "82").passed
    assert len(asked) == 1
    assert mathematics.judge(r"\boxed{(x+1)^{70}-(x+1)^{70}+7}", "7").passed
    assert not mathematics.judge(r"\boxed{(x+1)^{70}}", "x").passed
    assert len(asked) == 3
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
