"""Prepares a process before its first call, so that loading time does not count for a response.

SymPy loads some of its modules when they are first used. The grammar's parser (ANTLR) builds its prediction cache when
it first parses each kind of expression.
"""

from __future__ import annotations

from tasks.verifiers.mathematics.equivalence import is_equivalent


def warm_up() -> None:
    """Load the required parts of SymPy and fill the parser's cache. This takes about a second of CPU time.

    It is called once, in the process from which the workers are forked.
    """
    from tasks.verifiers.mathematics import algebra  # loads SymPy, which only processes that verify need

    algebra.warm_up()
    for answer, reference in EQUAL_ANSWERS:
        is_equivalent(answer, reference)


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
"""Pairs of equal answers, one for each kind of comparison, because each uses other modules of SymPy."""
