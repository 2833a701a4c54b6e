"""The machine-readable zone of a passport: two lines of 44 characters (ICAO Doc 9303 part 4, size TD3)."""

from __future__ import annotations

import unicodedata
from datetime import date

# Letters without a decomposition, and those that part 3, section 6 of Doc 9303 writes with two letters.
_RULES = "Ä:AE Ö:OE Ü:UE Å:AA Æ:AE Ø:OE Œ:OE ß:SS Þ:TH Đ:D Ð:D Ł:L Ħ:H ı:I"
_LETTERS = dict(rule.split(":") for rule in _RULES.split())
_VALUES = {character: value for value, character in enumerate("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")} | {"<": 0}
_PERIODIC = (7, 3, 1)

# What the zone calls a state (part 3, section 5): ISO 3166-1 alpha-3, but for Germany.
_STATES = """
Albania:ALB Austria:AUT Belgium:BEL Bulgaria:BGR Canada:CAN Chile:CHL Croatia:HRV Cyprus:CYP Denmark:DNK
Estonia:EST Finland:FIN France:FRA Germany:D Greece:GRC Hungary:HUN Iceland:ISL India:IND Ireland:IRL Italy:ITA
Japan:JPN Kenya:KEN Latvia:LVA Lithuania:LTU Luxembourg:LUX Malta:MLT Mexico:MEX Moldova:MDA Morocco:MAR
Norway:NOR Peru:PER Poland:POL Portugal:PRT Romania:ROU Serbia:SRB Slovakia:SVK Slovenia:SVN Spain:ESP
Sweden:SWE Switzerland:CHE Tunisia:TUN Turkey:TUR Uruguay:URY Vietnam:VNM
"""
STATE_CODES = dict(pair.split(":") for pair in _STATES.split())


def check_digit(characters: str) -> str:
    """The sum of the values times 7, 3, 1, 7, 3, 1 … modulo 10 (part 3, section 4.9)."""
    return str(sum(_VALUES[character] * _PERIODIC[i % 3] for i, character in enumerate(characters)) % 10)


def zone(
    surname: str,
    given: str,
    state: str,
    number: str,
    nationality: str,
    born: date,
    sex: str,
    expires: date,
    personal: str,
) -> tuple[str, str]:
    """The two lines. `personal` is the optional data, at most 14 characters; empty gives fillers and a filler digit."""
    first = f"P<{state:<<3}{letters(surname)}<<{letters(given)}"[:44].ljust(44, "<")
    number_part = _with_digit(f"{number:<<9}")
    born_part, expires_part = _with_digit(f"{born:%y%m%d}"), _with_digit(f"{expires:%y%m%d}")
    personal_part = _with_digit(f"{personal:<<14}") if personal else "<" * 15
    composite = check_digit(number_part + born_part + expires_part + personal_part)
    return first, f"{number_part}{nationality:<<3}{born_part}{sex}{expires_part}{personal_part}{composite}"


def is_valid(second_line: str) -> bool:
    """Whether the length, the characters and all five check digits of a second line are right."""
    if len(second_line) != 44 or not set(second_line) <= _VALUES.keys():
        return False
    parts = [second_line[start:end] for start, end in ((0, 10), (13, 20), (21, 28), (28, 43))]
    filled = parts if parts[3].strip("<") else parts[:3]
    return all(part[-1] == check_digit(part[:-1]) for part in filled) and second_line[43] == check_digit("".join(parts))


def _with_digit(characters: str) -> str:
    return characters + check_digit(characters)


def letters(name: str) -> str:
    """A name in the letters A to Z, other signs as fillers and apostrophes left out."""
    written = "".join(_LETTERS.get(letter, letter) for letter in (_upper(letter) for letter in name))
    plain = (letter for letter in unicodedata.normalize("NFKD", written) if not unicodedata.combining(letter))
    return "".join(letter if "A" <= letter <= "Z" else "<" for letter in plain if letter not in "'’")


def _upper(letter: str) -> str:
    return letter.upper() if len(letter.upper()) == 1 else letter
