r"""`math`: one object in two notations: those of programs, of other countries, of sets, and TeX's short forms.

Each row is an answer, a reference and whether the answer earns the reward.
"""

import pytest

from tasks.verifiers import mathematics

NOTATIONS = {
    "programs": [
        (r"4\pi r^2", "4*pi*r**2", True), ("-2 + exp(9)", "e^{9}-2", True), ("abs(y)", "|y|", True),
        ("x**-1", r"\frac1x", True), ("sqrt(2+sqrt(3))", r"\sqrt{2+\sqrt3}", True), ("sinh(x)", r"\sinh x", True),
        ("2**0.5", r"\sqrt2", True), (r"\arcsin(10/13)", "np.arcsin(10/13)", True), ("log10(100)", "2", True),
        ("floor(3.7)", "3", True), (r"\frac{e^{at}-e^{-at}}{2a}", r"\frac{1}{2a}(\exp{a*t} - \exp{-a*t})", True),
        ("**7**", "7", True), ("4*pi*r*2", r"4\pi r^2", False), ("abs(y)", "y", False), ("exp(9)", "9e", False),
        ("x**2", "2x", False),
    ],
    "arguments without braces": [
        (r"\frac\pi3", r"\frac{\pi}{3}", True), (r"\frac{1}\pi", r"1/\pi", True), (r"\frac y4", "y/4", True),
        (r"\frac x y", "x/y", True), (r"\frac{x+1}2", "(x+1)/2", True), (r"\binom n2", r"\frac{n(n-1)}{2}", True),
        (r"\sqrt\pi", r"\sqrt{\pi}", True), (r"\frac12\pi", r"\pi/2", True), (r"\frac\pi{12}", r"\pi/12", True),
        (r"\frac\pi3", r"\frac{3}{\pi}", False), (r"\frac y4", r"\frac4y", False), (r"\frac{1}\pi", r"\pi", False),
    ],
    "functions by other names": [
        (r"\cot^{-1}(3)", r"\operatorname{arccot} 3", True), (r"\tg x", r"\tan x", True), (r"\lg 100", "2", True),
        (r"\operatorname{tg} x", r"\tan x", True), (r"\sec^{-1} 2", r"\pi/3", True), (r"\arctg 1", r"\pi/4", True),
        (r"\sinh^{-1} 1", r"\ln(1+\sqrt2)", True), (r"\operatorname{arsinh} 1", r"\ln(1+\sqrt2)", True),
        (r"\cot^{-1}(3)", r"\frac{1}{\cot 3}", False), (r"\cot^{-1}(3)", r"\tan^{-1}(3)", False),
        (r"\lg 5", r"\ln 5", False),
    ],
    "relations and memberships": [
        ("y>4", r"y\in(4,\infty)", True), (r"y\in(4,\infty)", "4<y", True),
        (r"y\in(4,\infty)", r"y \in (4,+\infty)", True),
        (r"y<0\text{ or }y>4", r"y\in(-\infty,0)\cup(4,\infty)", True),
        (r"x=2\text{ or }x=3", r"x\in\{2,3\}", True), (r"\theta\in(0,\pi)", r"0<\theta<\pi", True),
        (r"y\in(4,\infty)", r"y\ge4", False), (r"y\in(4,\infty)", "x>4", False),
        (r"x\in(4,\infty)", r"y\in(4,\infty)", False), (r"x\in(4,5)", "x=4, y=5", False),
        (r"y\in\mathbb{Z}", "y>4", False),
    ],
    "sets by a condition": [
        (r"\{x \mid x>5\}", "x>5", True), (r"\{x : x>5\}", r"\{x\mid x>5\}", True),
        ("-2<x<7", r"\{x|-2<x<7\}", True), (r"\{x|-2<x<7\}", "(-2,7)", True),
        (r"\{y\mid y>5\}", r"\{x\mid x>5\}", True), (r"\{x: |x|<2\}", "(-2,2)", True),
        (r"\left\{x\in\mathbb{R} \,\middle|\, x>5\right\}", "x>5", True),
        (r"\{x\in\mathbb{Z}\mid x>5\}", "x>5", False), (r"\{x|x>5\}", r"\{x|x\ge5\}", False),
        (r"\{x \mid x>5\}", "y>5", False), (r"\{x \mid x>5, x\in\mathbb{Z}\}", "x>5", False),
    ],
    "qualifiers": [
        (r"x=2k\pi\ (k\in\mathbb{Z})", r"x=2k\pi, k\in\mathbb{Z}", True),
        (r"2k\pi", r"x=2k\pi, k\in\mathbb{Z}", True), (r"f(x)=cx \text{ for any } c\in\mathbb R", "f(x)=cx", True),
        (r"x=2n\pi, n\in\mathbb{Z}", r"x=2k\pi, k\in\mathbb{Z}", True),
        (r"x=2k\pi \text{ where } k \text{ is an integer}", r"x=2k\pi, k\in\mathbb{Z}", True),
        (r"x=2k\pi \text{ for all integers } k", r"x=2k\pi", True), (r"x>5, x\in\mathbb{R}", "x>5", True),
        (r"x=2k\pi, k\in\mathbb{N}", r"x=2k\pi, k\in\mathbb{Z}", False),
        (r"x=2k\pi, k\in\mathbb{N}", r"x=2k\pi", False), (r"f(x)=cx, c\in\mathbb{Z}", "f(x)=cx", False),
        (r"f(x)=2x \text{ for all } x", "f(x)=2x", True), (r"f(n)=2n, \text{ for every } n", "f(n)=2n", True),
        (r"f(x)=2x \text{ for any integer } x", "f(x)=2x", False),
        (r"x>5, x\in\mathbb{Z}", "x>5", False), (r"x=k\pi, k\in\mathbb{Z}", r"x=2k\pi, k\in\mathbb{Z}", False),
    ],
    "brackets that are turned outwards": [
        ("]2,5]", "(2,5]", True), (r"]-\infty,2[\cup]5,\infty[", r"(-\infty,2)\cup(5,\infty)", True),
        (r"x\in]2;5[", "2<x<5", True), ("]2,5]", "[2,5]", False), ("[2,5[", "[2,5]", False),
        ("]2,5[", "]2,5]", False),
    ],
    "sets in words": [
        ("no solution", r"\emptyset", True), (r"\text{no real solutions}", r"\{\}", True),
        (r"\varnothing", "No solution", True), ("all real numbers", r"(-\infty,\infty)", True),
        (r"\mathbb{R}", r"\text{all real numbers}", True), ("no solution", "0", False),
        ("no solution", r"\mathbb{R}", False), ("no", r"\emptyset", False),
    ],
    "binomial coefficients": [
        ("C_5^2", "10", True), (r"\mathrm{C}_{10}^{3}", "120", True), ("C(5, 2)", "10", True),
        ("^5C_2", "10", True), (r"{}_5C_2", "10", True), ("10^5C_2", "100", False),
        ("C_5^2", "25", False), ("C_1^2", "2", False), ("C_5^2 e^t", "10 e^t", False),
    ],
    "one value in several ways": [
        ("3/8, or 37.5%", "3/8", True), (r"\frac{3}{8} \text{ or } 0.375", "3/8", True),
        ("3/8 or 5/8", "3/8", False), ("3/8, or 38%", "3/8", False), ("7 or 7", "7", False),
    ],
    "indices and primes": [
        ("E_1", "E_{1}", True), (r"\frac{E_1+2E_2}{3}", r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", True),
        ("y'=rx-ry", r"y^{\prime}+r y-r x=0", True), ("E_1", "E_{2}", False), ("y=2x", "y'=2x", False),
        ("y''=2x", "y'=2x", False),
    ],
}  # fmt: skip


def rows_of(table):
    return [pytest.param(*row, id=f"{group}:{row[0]}~{row[1]}") for group, rows in table.items() for row in rows]


@pytest.mark.parametrize(("answer", "reference", "passes"), rows_of(NOTATIONS))
def test_an_object_is_the_same_in_any_notation_and_no_other_is(answer, reference, passes):
    assert mathematics.judge(rf"So it is $\boxed{{{answer}}}$.", reference).passed == passes
