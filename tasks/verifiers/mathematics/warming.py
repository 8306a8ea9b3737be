"""What a process does before its first judgement, so that no response is charged for it.

SymPy loads parts of itself when they are first needed. The grammar's parser (ANTLR) learns its way through each shape
of expression when it first meets one, which often takes ten times as long as to read the next.
"""

from __future__ import annotations

from tasks.verifiers.mathematics import algebra
from tasks.verifiers.mathematics.equivalence import equivalent


def warm_up() -> None:
    """Learn common ways through the grammar, and load all of SymPy that judgements need: some three seconds."""
    algebra.warm_up()
    for answer, reference in EQUAL_ANSWERS:
        equivalent(answer, reference)
    for answer in SHAPES:
        algebra.read(answer)


def rehearse() -> None:
    """Compare two answers as after a fork: memory that two processes share is copied as one of them first uses it.

    To be called in every process that judges: 10 of its milliseconds, or of its first judgement's.
    """
    equivalent(*REHEARSAL)


REHEARSAL = ("32x^2 + 77x + 230", "230 + 77x + 32x^2")
"""No pair of `EQUAL_ANSWERS`, or SymPy would know the result."""

EQUAL_ANSWERS = (
    ("12x^2 + 34x + 56", "56 + 34x + 12x^2"),
    (r"-\frac{3x}{4} - 2", r"-2 - \frac{3}{4}x"),
    ("12 + 34i", "34i + 12"),
    ("i^2", "-1"),
    (r"2 + 3\sqrt{2}", r"\sqrt{18} + 2"),
    (r"\frac{2\pi}{3} + 1", r"1 + \frac{2}{3}\pi"),
    (r"\log_2 8", "3"),
    (r"\sin^2 x+\cos^2 x", "1"),
    (r"e^{i\pi} + 2^{-1}", "-0.5"),
    (r"\int_0^1 x dx", "1/2"),
    (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)"),
    ("(1,2)", "1<x<2"),
    (r"x \le 12", r"12 \ge x"),
    ("y=2x+1", "2x-y+1=0"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
)
"""For each kind of comparison SymPy loads another part of itself."""

SHAPES = (
    r"\frac{n(n+1)(2n+1)}{6}",
    "a^{n}b^{m}",
    "x^{1/2}",
    r"x^{\frac{2}{3}}",
    r"\left[\frac{1}{2},2\right]",
    "(x^2+1)(x^2-2)",
    "x^{-2}",
    r"\ln(x+1)",
    r"\int_0^1 x^2 dx",
    "|x|+|y|",
    r"2e^{i\pi/3}",
    "e^{2x}+e^{-2x}",
    r"e^{-\frac{x^2}{2}}",
    r"\{\sqrt{2},-\sqrt{2}\}",
    r"\frac{2x^2-3}{x(x+1)}",
    "f(x)=2x",
    r"\frac{5!}{3!2!}",
    "(a+b)(a-b)",
    "a_n=2n+1",
    r"\cos 2x",
    "x_1+x_2",
    r"\frac{1}{2}\cdot\frac{3}{4}",
    r"\begin{pmatrix}-1/2\\ \frac{3}{4}\end{pmatrix}",
    r"\sum_{n=1}^{\infty}\frac{1}{n^2}",
    r"\cos(2x)+1",
    r"x<-1 \text{ or } x>2",
    r"2\ln|x|+C",
    r"\sin^{-1}\frac{3}{5}",
    r"\frac{(x+1)^2}{4}+\frac{(y-2)^2}{9}=1",
    "[-2,3)",
    r"y=\frac{3}{2}x-7",
    r"\lim_{x\to 0}\frac{\sin x}{x}",
    "e^{x^2}",
    r"\{1,2,3\}",
    "(x-3)^2+(y+4)^2=49",
    r"e^{-x}\sin x",
)
"""Chosen in turn out of some 300 that were written down for it, in the manner of textbooks: what taught the most."""
