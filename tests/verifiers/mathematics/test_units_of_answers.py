r"""`math`: units of answers, in the notations of physics: which are the same, which differ, and what is no unit.

Each row is an answer, a reference and whether the answer earns the reward.
"""

import pytest

from tasks.verifiers import mathematics

UNITS = {
    "products and powers": [
        (r"5\,\mathrm{m\,s^{-1}}", "5 m/s", True), (r"5\text{ m/s}", r"5\frac{\text{m}}{\text{s}}", True),
        (r"5 \mathrm{~m} \mathrm{~s}^{-1}", "5", True), (r"5\ \mathrm{m\cdot s^{-1}}", r"5\text{ m/s}", True),
        ("9.8 meters per second squared", r"9.8\,\mathrm{m\,s^{-2}}", True), ("9.8 m/s/s", "9.8 m/s^2", True),
        (r"8.31\ \mathrm{J/(mol\,K)}", r"8.31\ \mathrm{J\,mol^{-1}\,K^{-1}}", True),
        (r"1000\,\frac{\text{kg}}{\text{m}^3}", r"1000\text{ kg/m}^3", True), ("20 cc", r"20\text{ cm}^3", True),
        (r"2\ \mathrm{kg\,m^2\,s^{-2}}", r"2\ \text{kg m}^2/\text{s}^2", True), ("60 km per hour", "60 km/h", True),
        (r"4\ \text{N}\cdot\text{m}", r"4\ \mathrm{N\,m}", True), ("4 N\u00b7m", "4", True),
        (r"5\ \mathrm{m\,s^{-1}}", r"5\ \mathrm{m\,s^{-2}}", False), (r"5\ \mathrm{m\,s}", "5 m/s", False),
        ("5 m/s", "5 s/m", False), (r"4\text{ N m}", r"4\text{ N}", False), ("20 cc", r"20\text{ cm}^2", False),
        (r"8\ \mathrm{J/(mol\,K)}", r"8\ \mathrm{J/mol}", False), (r"5\ \mathrm{m\,s^{-1}}", "6", False),
    ],
    "other letters": [
        (r"15\ \Omega", "15", True), ("15 \u03a9", r"15\,\Omega", True), (r"15\ \Omega", "15 ohms", True),
        (r"3\ \mu\mathrm{m}", "3 \u03bcm", True), (r"3\,\mu m", "3", True), ("13.6 eV", "13.6", True),
        (r"5\,\AA", "5 angstroms", True), (r"300\,\mathrm{K}", "300", True), (r"2\text{ A}", "2", True),
        (r"15\ \Omega", r"15\ \text{k}\Omega", False), ("3 \u03bcm", "3 mm", False), ("13.6 eV", "13.6 J", False),
        ("5 nm", "5 mm", False), (r"2\text{ A}", r"2\text{ V}", False), (r"15\ \Omega", "16", False),
    ],
    "as Minerva's solutions set them": [
        (r"4.5 \times 10^{33} \mathrm{ergs} \mathrm{s}^{-1}", "4.5e33", True), (r"9.6 \AA", "9.6", True),
        (r"1.4903 \times 10^{4} {cm}^{-1}", "1.4903e4", True), (r"1.87 \times 10^{6} {~m} / {s}", "1.87e6", True),
        (r"7.353 \times 10^{14} s^{-1}", "7.353e14", True), ("35.06 g/mole", "35.06", True),
        ("1.9 {eV}", "1.9", True), (r"15000 \mathrm{kcal} \mathrm{m}^{-2} \mathrm{yr}^{-1}", "15000", True),
        ("4.4677 Hz", "4.4677", True), (r"3.61 \times 10^{2} \mathrm{~pm}", "3.61e2", True),
        (r"50 \mu \mathrm{m}", "50", True), (r"8.49 \times 10^{-4} \mathrm{M}", "8.49e-4", True),
        (r"28.8 \mathrm{~s}^{-1}", "28.8", True), (r"2.88 \times 10^{16} 1 / \mathrm{cm}^{3}", "2.88e16", True),
        (r"0.49 \operatorname{arcsecs}", "0.49", True), (r"41.9 \mathrm{~kJ} / \mathrm{mole}", "41.9", True),
        (r"\sim 24.4", "24.4", True), (r"4.5 \times 10^{33} \mathrm{ergs} \mathrm{s}^{-1}", "4.5e32", False),
        (r"9.6 \AA", "9.7", False),
    ],
    "variables, and thousands": [
        ("2 s^{-1}", "2", False), ("x s^{-1}", "x", False), (r"5\frac{m}{s}", "5", False), ("5m", "5", False),
        (r"\frac{1}{2}\mu m g", r"\frac12", False), ("3 m g h", "3", False), ("12 K", "12", False),
        ("12 M", "12", False), (r"12\text{ M}", "12", False), ("10 pm", "10 am", False),
        ("5 kg m/s", "5 kg m/s^2", False),
    ],
    "a unit against a noun or a percent sign": [
        ("2500 bananas", "2500 ml", False), ("2500 ml", "2500 bananas", False), ("12 cm", "12 students", False),
        ("12 apples", r"\$12", False), ("25 students", r"25\%", False), ("25 cm", "25%", False),
        ("12 apples", "12 apples", True), ("12 red apples", "12 apples", True),
        ("5 gallons of water", "5 gallons", True), ("3 full hours", "3 hours", True),
        ("7 chocolate bars", "7", True), ("7 dollars each", r"\$7", True),
    ],
}  # fmt: skip


def rows_of(table):
    return [pytest.param(*row, id=f"{group}:{row[0]}~{row[1]}") for group, rows in table.items() for row in rows]


@pytest.mark.parametrize(("answer", "reference", "passes"), rows_of(UNITS))
def test_a_unit_may_be_missing_and_is_the_same_in_any_notation(answer, reference, passes):
    assert mathematics.judge(rf"So it is $\boxed{{{answer}}}$.", reference).passed == passes
