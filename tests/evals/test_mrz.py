"""The machine-readable zone against the specimen of the standard, and what a check digit notices."""

from __future__ import annotations

import string
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.tasks.mrz import STATE_CODES, check_digit, is_valid, letters, zone
from evals.tasks.pools import COUNTRIES, FIRST_NAMES, SURNAMES

SPECIMEN = (  # ICAO Doc 9303 part 4, appendix A
    "P<UTOERIKSSON<<ANNA<MARIA<<<<<<<<<<<<<<<<<<<",
    "L898902C36UTO7408122F1204159ZE184226B<<<<<10",
)
SIGNS = string.digits + string.ascii_uppercase + "<"


def made(**changes):
    bearer = {"surname": "Eriksson", "given": "Anna Maria", "state": "UTO", "number": "L898902C3"}
    page = {"nationality": "UTO", "born": date(1974, 8, 12), "sex": "F", "expires": date(2012, 4, 15)}
    return zone(**{**bearer, **page, "personal": "ZE184226B", **changes})


def test_the_specimen_of_the_standard_comes_out():
    assert made() == SPECIMEN
    assert is_valid(SPECIMEN[1])


@pytest.mark.parametrize(("text", "digit"), [("520727", "3"), ("AB2134<<<", "5"), ("<" * 9, "0"), ("", "0")])
def test_check_digits_worked_out_in_the_standard(text, digit):
    assert check_digit(text) == digit


@given(st.text(SIGNS, min_size=1, max_size=9), st.text(SIGNS[:-1], max_size=14), st.dates(), st.sampled_from("FM<"))
def test_every_zone_has_two_lines_of_44_and_right_digits(number, personal, born, sex):
    first, second = made(number=number, personal=personal, born=born, sex=sex)
    assert len(first) == len(second) == 44
    assert set(first + second) <= set(SIGNS)
    assert is_valid(second)


@given(st.integers(0, 43), st.sampled_from(string.digits))
def test_one_wrong_digit_is_always_noticed(place, digit):
    second = SPECIMEN[1]
    if second[place].isdigit() and second[place] != digit:
        assert not is_valid(second[:place] + digit + second[place + 1 :])


def test_a_line_of_another_length_or_alphabet_is_not_valid():
    assert not is_valid(SPECIMEN[1][:-1])
    assert not is_valid(SPECIMEN[1].lower())


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Müller", "MUELLER"),
        ("Øjvind", "OEJVIND"),
        ("Đuro", "DURO"),
        ("Weiß", "WEISS"),
        ("D'Arc", "DARC"),
        ("Nieuw-Roden", "NIEUW<RODEN"),
        ("Živilė", "ZIVILE"),
        ("Fırat", "FIRAT"),
    ],
)
def test_names_are_written_in_plain_letters(name, written):
    assert letters(name) == written


def test_every_name_of_the_pools_fits_and_every_country_has_a_code():
    assert max(map(len, map(letters, SURNAMES))) + max(map(len, map(letters, FIRST_NAMES))) <= 37
    assert set("".join(map(letters, SURNAMES + FIRST_NAMES))) <= set(string.ascii_uppercase)
    assert STATE_CODES.keys() == set(COUNTRIES)
    assert len(set(STATE_CODES.values())) == len(COUNTRIES)
