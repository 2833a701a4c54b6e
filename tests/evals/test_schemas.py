"""The schema stage of the score, arrays that are sets, and the clock that no document can outrun."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.documents import parse_strictly
from evals.metrics import score_document
from evals.schemas import misfit

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "born": {"type": "string", "format": "date"},
        "age": {"type": "integer", "minimum": 0},
        "pay": {"type": "number", "multipleOf": 0.01},
        "mail": {"type": ["string", "null"]},
    },
    "required": ["name"],
    "additionalProperties": False,
}
TAGS = {"type": "array", "items": {"type": "string"}, "x-order": "set"}
PAPERS = {
    "type": "object",
    "properties": {
        "papers": {
            "type": "array",
            "x-order": "set",
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "tags": TAGS}},
        }
    },
}


def fits(text, schema=PERSON):
    return misfit(parse_strictly(text), schema) == ""


def test_a_document_fits_or_the_first_breach_is_named():
    assert fits('{"name":"Ada","age":41}')
    reason = misfit(parse_strictly('{"name":"Ada","age":"41"}'), PERSON)
    assert reason == 'does not fit the schema: $.age breaks "type": "integer"'


def test_a_misfit_costs_schema_and_keys_but_not_part_credit():
    gold = '{"name":"Ada","age":41}'
    score = score_document(gold.replace("41", '"41"'), gold, PERSON)
    assert (score.parses, score.fits_schema, score.keys_right, score.exact) == (True, False, False, False)
    assert score.leaf_values_right == 0.5
    wrong = score_document(gold.replace("41", "42"), gold, PERSON)
    assert (wrong.fits_schema, wrong.keys_right, wrong.exact) == (True, True, False)
    renamed = score_document(gold.replace("age", "pay"), gold, PERSON)
    assert (renamed.fits_schema, renamed.keys_right, renamed.reason) == (True, False, "missing $.age")


@pytest.mark.parametrize("day", ["2024-02-30", "2023-02-29", "2024-2-03", "20240203", "2024-W05-1", "2024-02-03T00:00"])
def test_a_day_that_is_not_in_the_calendar_does_not_fit(day):
    gold = '{"name":"Ada","born":"2024-02-29"}'
    assert score_document(gold, gold, PERSON).exact
    assert not score_document(gold.replace("2024-02-29", day), gold, PERSON).fits_schema


@pytest.mark.parametrize("number", ["41", "41.0", "4.1e1", "1234567890123456789", "1e400", "-0", "7" * 5000])
def test_integers_are_values_not_spellings(number):
    assert fits(f'{{"name":"Ada","age":{number}}}')


@pytest.mark.parametrize("number", ["41.5", "1e-400", '"41"', "true", "null", "[41]", "-1"])
def test_what_is_no_integer_from_0_does_not_fit(number):
    assert not fits(f'{{"name":"Ada","age":{number}}}')


def test_multiples_are_counted_in_decimals():
    assert fits('{"name":"Ada","pay":0.29}')  # in doubles 0.29 / 0.01 = 28.999999999999996
    assert fits('{"name":"Ada","pay":1234.5}')
    assert not fits('{"name":"Ada","pay":0.295}')
    assert "cannot be checked" in misfit(parse_strictly('{"name":"Ada","pay":1e400}'), PERSON)


def test_null_is_a_value_and_missing_is_none():
    gold = '{"name":"Ada","mail":null}'
    assert score_document(gold, gold, PERSON).exact
    assert not score_document('{"name":"Ada"}', gold, PERSON).keys_right
    assert not score_document('{"name":null,"mail":null}', gold, PERSON).fits_schema
    assert not score_document('{"mail":null}', gold, PERSON).fits_schema


def test_strings_are_held_against_the_schema_in_nfc():
    schema = {"type": "string", "maxLength": 1}
    assert fits('"e\u0301"', schema)
    assert not fits('"q\u0301"', schema)  # has no composed form: two code points


# ---- the clock


def test_a_pattern_of_exponential_time_is_stopped_and_counts_as_a_misfit():
    schema = {"type": "string", "pattern": "^(a+)+$"}
    started = time.monotonic()
    reason = misfit("a" * 40 + "!", schema, limit_s=0.2)
    assert time.monotonic() - started < 2
    assert reason == "does not fit the schema: not checked within 0.2 s"


def test_a_schema_that_never_ends_is_a_misfit():
    assert "RecursionError" in misfit("x", {"$ref": "#"})


def test_a_quadratic_check_of_a_long_document_is_stopped():
    document = [{"a": n} for n in range(20_000)]
    assert "not checked" in misfit(document, {"uniqueItems": True, "items": {"maxProperties": 1}}, limit_s=0.05)


def test_the_deepest_document_that_parses_can_be_checked():
    nested = {"$defs": {"nest": {"type": "array", "items": {"$ref": "#/$defs/nest"}}}, "$ref": "#/$defs/nest"}
    assert fits("[" * 100 + "]" * 100, nested)
    assert not fits("[" * 99 + "1" + "]" * 99, nested)


def test_the_callers_alarm_handler_is_put_back():
    before = signal.getsignal(signal.SIGALRM)
    assert fits('{"name":"Ada"}')
    misfit("a" * 40 + "!", {"pattern": "^(a+)+$"}, limit_s=0.05)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_thread_that_could_not_keep_the_limit_is_refused():
    raised = []

    def check():
        try:
            misfit("x", {"type": "string"})
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert "main thread" in raised[0]


def test_a_right_answer_is_right_whatever_the_clock_says():
    gold = json.dumps("a" * 40 + "!")
    assert score_document(gold, gold, {"type": "string", "pattern": "^(a+)+$"}).exact


# ---- sets


def test_order_counts_unless_the_schema_says_set():
    assert score_document('["b","a"]', '["a","b"]', TAGS).exact
    assert not score_document('["b","a"]', '["a","b"]', {"type": "array", "uniqueItems": True}).exact
    assert not score_document('["b","a"]', '["a","b"]').exact


def test_a_set_keeps_count():
    assert not score_document('["a","a"]', '["a"]', TAGS).exact
    assert not score_document('["a","b"]', '["a","a"]', TAGS).exact
    assert score_document("[]", "[]", TAGS).exact
    fewer = score_document('["c"]', '["a","b","c"]', TAGS)
    assert (fewer.exact, fewer.leaf_values_right) == (False, pytest.approx(1 / 3))
    assert fewer.reason == '$[0] is missing, not "a"'


def test_sets_inside_items_of_sets_are_paired_too():
    gold = '{"papers":[{"name":"bill","tags":["x","y"]},{"name":"bill","tags":["z"]}]}'
    other = '{"papers":[{"name":"bill","tags":["z"]},{"tags":["y","x"],"name":"bill"}]}'
    assert score_document(other, gold, PAPERS).exact
    assert not score_document(other.replace('"z"', '"x"'), gold, PAPERS).exact


def test_the_pairing_is_optimal_and_not_greedy():
    gold = '{"papers":[{"name":"a","n":1,"m":1},{"name":"a","n":2,"m":1}]}'
    # The first item agrees in two leaves with either; only one choice leaves three for the second.
    output = '{"papers":[{"name":"a","n":3,"m":1},{"name":"a","n":1,"m":1}]}'
    assert score_document(output, gold, PAPERS).leaf_values_right == pytest.approx(5 / 6)


def test_an_item_that_is_gold_and_more_does_not_take_the_place_of_gold():
    gold = '{"papers":[{"name":"a"},{"name":"a","tags":["x"]}]}'
    assert score_document('{"papers":[{"name":"a","tags":["x"]},{"name":"a"}]}', gold, PAPERS).exact


items = st.fixed_dictionaries({"name": st.sampled_from("ab"), "n": st.integers(0, 1)})


@given(st.lists(items, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_every_order_of_a_set_is_exact(documents, random):
    gold = json.dumps({"papers": documents})
    output = json.dumps({"papers": random.sample(documents, len(documents))})
    assert score_document(output, gold, PAPERS).exact


@given(st.lists(items, min_size=1, max_size=4), st.lists(items, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_the_share_of_a_set_is_the_best_over_all_orders(ours, gold):
    gold_text = json.dumps({"papers": gold})
    best = max(
        score_document(json.dumps({"papers": order}), gold_text).leaf_values_right
        for order in itertools.permutations(ours + [{}] * max(0, len(gold) - len(ours)))
    )
    assert score_document(json.dumps({"papers": ours}), gold_text, PAPERS).leaf_values_right == pytest.approx(best)
