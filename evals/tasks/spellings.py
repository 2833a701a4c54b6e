"""How dates and amounts of money are spelled in documents, in English and in the languages of the neighbours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# Numeric dates put the day first. The order matters: a template draws from it by number.
DATE_SPELLINGS: tuple[Callable[[date], str], ...] = (
    lambda on: f"{on.day} {MONTHS[on.month - 1]} {on.year}",
    lambda on: f"{on.day} {MONTHS[on.month - 1][:3]} {on.year}",
    lambda on: f"{MONTHS[on.month - 1]} {on.day}, {on.year}",
    lambda on: f"{on.day:02}/{on.month:02}/{on.year}",
    lambda on: f"{on.day:02}.{on.month:02}.{on.year}",
    lambda on: on.isoformat(),
)
# Amounts are whole cents, so that no rounding comes between the text and the answer.
AMOUNT_SPELLINGS: tuple[Callable[[int], str], ...] = (
    lambda cents: f"EUR {cents // 100:,}.{cents % 100:02}",
    lambda cents: f"€{cents // 100:,}.{cents % 100:02}",
    lambda cents: f"{cents // 100:,}".replace(",", ".") + f",{cents % 100:02} EUR",
    lambda cents: f"{cents // 100},{cents % 100:02} €",
    lambda cents: f"{cents // 100}.{cents % 100:02} euros",
)

_MONTHS_ABROAD = {
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
}
MONTHS_ABROAD = {language: names.split() for language, names in _MONTHS_ABROAD.items()}
LOCAL_DATES: tuple[Callable[[date], str], ...] = (
    *DATE_SPELLINGS,
    lambda on: f"{on.day:02} {MONTHS[on.month - 1][:3].upper()} {on.year}",
    lambda on: f"{on.day}. {MONTHS_ABROAD['de'][on.month - 1]} {on.year}",
    lambda on: f"{on.day} {MONTHS_ABROAD['fr'][on.month - 1]} {on.year}",
    lambda on: f"{on.day} de {MONTHS_ABROAD['es'][on.month - 1]} de {on.year}",
    lambda on: f"{on.day} {MONTHS_ABROAD['it'][on.month - 1]} {on.year}",
    lambda on: f"{on.day} {MONTHS_ABROAD['nl'][on.month - 1]} {on.year}",
    lambda on: f"{on.day:02}-{on.month:02}-{on.year}",
)
# (ISO 4217 code, its spelling): the text says the currency, so the answer names it.
LOCAL_AMOUNTS: tuple[tuple[str, Callable[[int], str]], ...] = (
    *(("EUR", spell) for spell in AMOUNT_SPELLINGS),
    ("EUR", lambda cents: f"{cents // 100:,}".replace(",", " ") + f",{cents % 100:02} €"),
    ("GBP", lambda cents: f"£{cents // 100:,}.{cents % 100:02}"),
    ("CHF", lambda cents: "CHF " + f"{cents // 100:,}".replace(",", "'") + f".{cents % 100:02}"),
    ("PLN", lambda cents: f"{cents // 100:,}".replace(",", " ") + f",{cents % 100:02} zł"),
    ("USD", lambda cents: f"US${cents // 100:,}.{cents % 100:02}"),
)


def number_literal(cents: int) -> str:
    """Cents as the JSON number of the whole unit, always with two decimals."""
    return f"{cents // 100}.{cents % 100:02}"
