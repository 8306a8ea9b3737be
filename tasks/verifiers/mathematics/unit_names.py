r"""Defines unit names. A word is always a unit, a letter only after a number, and some letters only if upright.

parsecs, km/h, eV     a word, which cannot be a product of variables
5 m, 300 nm           one or two letters, which may also be variables
5 \mathrm{~T}         a letter that more often means a variable or a thousand than a unit
"""

from __future__ import annotations

import re

_NAMES = {
    "m": "meter metre",
    "cm": "cm centimeter centimetre",
    "mm": "mm millimeter millimetre",
    "dm": "dm decimeter decimetre",
    "km": "km kilometer kilometre",
    "um": "micrometer micrometre micron",
    "nm": "nanometer nanometre",
    "pm": "picometer picometre",
    "angstrom": "angstrom Angstrom",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "au": "AU",
    "ly": "lightyear",
    "pc": "parsec",
    "kpc": "kpc kiloparsec",
    "mpc": "Mpc megaparsec",
    "acre": "acre",
    "hectare": "hectare",
    "g": "gram gm",
    "kg": "kg kilogram",
    "mg": "mg milligram",
    "ug": "microgram",
    "lb": "lb pound",
    "oz": "oz ounce",
    "t": "ton tonne",
    "amu": "amu dalton",
    "l": "liter litre",
    "ml": "ml mL milliliter millilitre",
    "ul": "microliter microlitre",
    "gal": "gal gallon",
    "s": "second sec",
    "ms": "millisecond",
    "us": "microsecond",
    "ns": "nanosecond",
    "min": "min minute",
    "h": "hour hr",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "myr": "Myr",
    "gyr": "Gyr",
    "dollar": "dollar usd USD buck",
    "cent": "cent",
    "euro": "euro eur EUR",
    "rupee": "rupee Rs",
    "yen": "yen",
    "degree": "degree deg",
    "arcmin": "arcminute arcmin",
    "arcsec": "arcsecond arcsec",
    "celsius": "celsius Celsius",
    "fahrenheit": "fahrenheit Fahrenheit",
    "kelvin": "kelvin Kelvin",
    "radian": "radian rad",
    "mph": "mph",
    "kmh": "kmh kph kmph",
    "knot": "knot",
    "rpm": "rpm",
    "hz": "Hz hertz Hertz",
    "khz": "kHz kilohertz",
    "mhz": "MHz megahertz",
    "ghz": "GHz gigahertz",
    "newton": "newton Newton",
    "kn": "kN kilonewton",
    "dyne": "dyne",
    "pa": "Pa pascal Pascal",
    "kpa": "kPa kilopascal",
    "mpa": "MPa megapascal",
    "gpa": "GPa gigapascal",
    "bar": "bar",
    "atm": "atm atmosphere",
    "torr": "torr Torr",
    "psi": "psi",
    "joule": "joule Joule",
    "kj": "kJ kilojoule",
    "mj": "mJ millijoule",
    "erg": "erg",
    "ev": "eV electronvolt",
    "kev": "keV",
    "mev": "MeV",
    "gev": "GeV",
    "cal": "cal calorie",
    "kcal": "kcal kilocalorie",
    "kwh": "kWh",
    "watt": "watt Watt",
    "kw": "kW kilowatt",
    "mw": "MW megawatt",
    "volt": "volt Volt",
    "kv": "kV kilovolt",
    "mv": "mV millivolt",
    "ampere": "ampere Ampere amp",
    "ma": "mA milliampere",
    "coulomb": "coulomb Coulomb",
    "uc": "microcoulomb",
    "farad": "farad Farad",
    "uf": "microfarad",
    "henry": "henry",
    "tesla": "tesla Tesla",
    "ohm": "ohm Ohm",
    "kohm": "kiloohm kilohm",
    "mohm": "megaohm megohm",
    "mol": "mol mole",
    "mmol": "mmol millimole",
    "molar": "molar",
    "atom": "atom",
    "molecule": "molecule",
    "photon": "photon",
    "electron": "electron",
    "bit": "bit",
    "byte": "byte",
    "decibel": "decibel dB",
    "magnitude": "magnitude mag",
    "cc": "cc",
    "unit": "unit",
}
_LETTERS = {
    "m": "m",
    "g": "g",
    "t": "t",
    "l": "l",
    "L": "l",
    "s": "s",
    "h": "h",
    "N": "newton",
    "J": "joule",
    "W": "watt",
    "V": "volt",
    "nm": "nm",
    "pm": "pm",
    "ms": "ms",
    "ns": "ns",
    "pc": "pc",
}
_UPRIGHT = {"A": "ampere", "C": "coulomb", "F": "farad", "H": "henry", "T": "tesla", "K": "kelvin", "M": "molar"}
_WORDS = {spelling: unit for unit, spellings in _NAMES.items() for spelling in spellings.split()}
_FIRST = {unit: spellings.split()[0] for unit, spellings in _NAMES.items()}

UPRIGHT_ONLY = frozenset(_UPRIGHT)
"""Letters that are units only if they are set upright, such as K, M and A."""
LONG_NAMES = "|".join(sorted(_WORDS, key=len, reverse=True))
"""Pattern of the unit names that are words, without plural endings."""
SHORT_NAMES = "".join(letter for letter in _LETTERS if len(letter) == 1)
"""Units of one letter, for a character class in a pattern."""
COMPOUND = {
    "kmh": {"km": 1, "h": -1},
    "mph": {"mi": 1, "h": -1},
    "hz": {"s": -1},
    "molar": {"mol": 1, "l": -1},
    "cc": {"cm": 3},
}
"""Units that are products of other units, with the exponents of the other units."""


def find_unit(word: str) -> str | None:
    """Return the unit with the given name, in the singular or plural, or None if it is not a unit name."""
    return next(
        (_WORDS[stem] for stem in (word, word.removesuffix("s"), re.sub("es$", "", word)) if stem in _WORDS), None
    )


def find_letter_unit(letter: str) -> str | None:
    """Return the unit that one or two letters after a number may mean, or None if there is none."""
    return _LETTERS.get(letter)


def find_unit_word(name: str) -> str | None:
    """Return the word for the unit of an upright name, or None if it is not a unit."""
    unit = _LETTERS.get(name) or _UPRIGHT.get(name) or find_unit(name)
    return _FIRST[unit] if unit else None


def is_unit(word: str) -> bool:
    """Return True if a word is the name of a unit, in the singular or plural, or a letter for one."""
    return find_unit(word) is not None or word in _LETTERS
