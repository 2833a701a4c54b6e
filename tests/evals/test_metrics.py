"""The staged score of one structured output, tried on what JSON, Unicode and models do to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.metrics import MAX_DEPTH, DocumentScore, parse_strictly, plain_score, score_document, summarize
from mdlm.errors import UserError

GOLD = '{"name":"Ada","born":"1984-03-03","income":1234.50}'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def exact(output, gold):
    return score_document(output, gold).exact


def parses(output):
    return score_document(output, "0").parses


# ---- the stages


def test_gold_is_exact():
    assert score_document(GOLD, GOLD) == DocumentScore(True, True, True, 1.0, True)


def test_a_wrong_leaf_costs_its_share_and_exactness_only():
    score = score_document(GOLD.replace("1984", "1985"), GOLD)
    assert (score.parses, score.keys_right, score.exact) == (True, True, False)
    assert score.leaf_values_right == pytest.approx(2 / 3)
    assert score.reason == '$.born is "1985-03-03", not "1984-03-03"'


def test_a_missing_or_extra_key_costs_the_keys():
    missing = score_document('{"name":"Ada","born":"1984-03-03"}', GOLD)
    assert (missing.keys_right, missing.exact, missing.reason) == (False, False, "missing $.income")
    assert missing.leaf_values_right == pytest.approx(2 / 3)
    extra = score_document(GOLD.replace("{", '{"age":41,'), GOLD)
    assert (extra.keys_right, extra.leaf_values_right, extra.exact) == (False, 1.0, False)
    assert extra.reason == "unexpected $.age"


def test_what_does_not_parse_scores_nothing():
    score = score_document(GOLD[:-1], GOLD)
    assert (score.parses, score.keys_right, score.leaf_values_right, score.exact) == (False, False, 0.0, False)
    assert score.reason.startswith("does not parse: ")


def test_keys_count_at_every_level():
    gold = '{"person":{"name":"Ada","papers":[{"type":"ID"},{"type":"bill"}]}}'
    renamed = score_document(gold.replace('"type":"bill"', '"kind":"bill"'), gold)
    assert (renamed.keys_right, renamed.reason) == (False, "missing $.person.papers[1].type")
    assert not score_document(gold.replace(',{"type":"bill"}', ""), gold).keys_right
    assert score_document(gold.replace("bill", "ID"), gold).keys_right


def test_order_of_keys_and_white_space_are_free_and_order_of_arrays_is_not():
    assert exact('\n{ "b" : [1, 2] ,\t"a" : null }\r\n ', '{"a":null,"b":[1,2]}')
    assert not exact("[2,1]", "[1,2]")


def test_only_json_white_space_is_white_space():
    assert not parses("1\u00a0")
    assert not parses("1\f")
    assert not parses("\ufeff1")


@given(json_values)
@settings(max_examples=150, deadline=None)
def test_any_document_is_exactly_itself_however_it_is_spelled(document):
    gold = json.dumps(document, ensure_ascii=False)
    try:
        parse_strictly(gold)
    except ValueError as error:
        assert "duplicate" in str(error)  # noqa: PT017 — two names of one object that are the same text in NFC
        return
    assert score_document(json.dumps(document, indent=2), gold) == DocumentScore(True, True, True, 1.0, True)


@given(st.text(), json_values)
@settings(max_examples=150, deadline=None)
def test_each_stage_implies_the_one_before(output, document):
    try:
        score = score_document(output, json.dumps(document))
    except UserError:
        return
    assert score.parses or not score.keys_right
    assert score.keys_right or not score.exact
    assert score.parses or score.leaf_values_right == 0
    assert score.exact == (score.reason == "")


# ---- numbers


@pytest.mark.parametrize(
    ("output", "gold"),
    [("1e3", "1000"), ("1234.5", "1234.50"), ("-0", "0"), ("10E-1", "1"), ("1.0", "1"), ("9" * 19, "9" * 19)],
)
def test_the_same_number_spelled_otherwise_is_exact(output, gold):
    assert exact(output, gold)


@pytest.mark.parametrize(
    ("output", "gold"),
    [
        ('"2029"', "2029"),
        ("2029", '"2029"'),
        ("true", "1"),
        ("1", "true"),
        ("false", "0"),
        ("null", "0"),
        ('""', "null"),
        ("[]", "{}"),
        ("9007199254740993", "9007199254740992"),  # the same double
        ("1234567890123456789", "1234567890123456788"),
        ("0.1", "0.10000000000000000001"),
    ],
)
def test_types_count_and_numbers_are_compared_exactly(output, gold):
    score = score_document(output, gold)
    assert (score.parses, score.exact, score.leaf_values_right) == (True, False, 0.0)


@pytest.mark.parametrize(
    "output",
    [
        "01",
        "1.",
        ".5",
        "+1",
        "1.234,50",
        "NaN",
        "Infinity",
        "-Infinity",
        "0x10",
        "1e",
        "--1",
        "١",
        "1_000",
        "1e" + "9" * 30,
    ],
)
def test_what_is_no_json_number_does_not_parse(output):
    assert not parses(output)
    assert not parses(f'{{"a":{output}}}')


def test_a_number_of_ten_thousand_digits_is_a_number():
    assert exact("7" * 10_000, "7" * 10_000)
    assert not exact("7" * 10_000, "7" * 9_999 + "8")
    assert len(score_document("7" * 10_000, "1").reason) < 100


# ---- strings


@pytest.mark.parametrize("text", ['Zoë "Q" O\'Neil', r"C:\new\u00e9", "a\tb", "", "\U0001f600", "\u0000"])
def test_awkward_strings_survive_both_ways_of_writing_them(text):
    gold = json.dumps({"a": text}, ensure_ascii=False)
    assert exact(json.dumps({"a": text}), gold)
    assert exact(gold, gold)


def test_an_unescaped_backslash_is_another_string():
    gold = json.dumps({"path": r"C:\new\u00e9"})
    assert not exact(r'{"path":"C:\new\u00e9"}', gold)
    assert not parses(r'"C:\data"')


def test_strings_and_keys_are_compared_in_nfc():
    assert exact('{"Zoe\u0308":"e\u0301"}', '{"Zo\u00eb":"\u00e9"}')
    assert not exact('"\u212b"', '"A"')
    assert exact('"\u212b"', '"\u00c5"')
    assert not exact('"\ufb01"', '"fi"')  # NFKC would have made these equal


@pytest.mark.parametrize("output", ['"\\ud800"', '"\ud800"', '{"\ud800":1}', "\ud800", '{"a":"\ud800'])
def test_a_lone_surrogate_is_a_wrong_answer_and_no_crash(output):
    score = score_document(output, '"x"')
    assert not score.exact
    score.reason.encode("ascii")


def test_control_characters_must_be_escaped():
    assert not parses('{"a":"x\ty"}')
    assert not parses('{"a":"x\ny"}')
    assert exact('"x\\ty"', '"x\\u0009y"')


# ---- structure


def test_null_is_not_missing():
    assert score_document('{"a":1}', '{"a":1,"b":null}').reason == "missing $.b"
    assert score_document('{"a":1,"b":null}', '{"a":1}').reason == "unexpected $.b"


def test_empty_arrays_and_objects_are_leaves():
    assert exact('{"a":[],"b":{}}', '{"b":{},"a":[]}')
    assert not exact('{"a":[[]]}', '{"a":[]}')
    assert not exact('{"a":[1]}', '{"a":[]}')
    longer = score_document("[1,2]", "[1]")
    assert (longer.leaf_values_right, longer.exact, longer.reason) == (1.0, False, "$[1] is 2, not missing")


def test_keys_that_are_prefixes_of_one_another_stay_apart():
    gold = '{"a":{"b":1},"ab":2,"a.b":3,"":{"":4},"0":5}'
    assert exact(gold, gold)
    assert not score_document('{"a":{"b":1},"ab":2,"a.b":3,"":4,"0":5}', gold).keys_right
    assert not score_document("[5]", '{"0":5}').keys_right


@pytest.mark.parametrize(
    "output",
    ['{"a":1,"a":1}', '{"x":[{"a":1,"a":2}]}', '{"\u00e9":1,"e\u0301":2}', '{"a":1,"\\u0061":1}'],
)
def test_duplicate_keys_do_not_parse(output):
    assert "duplicate" in score_document(output, "0").reason


@pytest.mark.parametrize(
    "output", ["", " ", "[1,]", '{"a":1,}', "{'a':1}", "{a:1}", "[1 2]", "// x\n1", "True", '"abc', "{"]
)
def test_what_only_looks_like_json_does_not_parse(output):
    assert not parses(output)


def test_two_documents_in_one_answer_do_not_parse():
    assert not parses(f"{GOLD}{GOLD}")
    assert not parses(f"{GOLD}\n{GOLD}")


def test_deep_nesting_is_an_answer_that_does_not_parse():
    for output in ("[" * 10_000, "[" * 10_000 + "]" * 10_000, '{"a":' * 10_000, f"x {'[' * 10_000}"):
        assert not parses(output)
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert exact(deepest, deepest)
    assert not parses(f"[{deepest}]")


def test_brackets_inside_strings_are_not_nesting():
    gold = json.dumps(["[" * 500, '\\"' + "{" * 500])
    assert exact(gold, gold)


# ---- text around the document


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}```", "Here it is:\n```json\n{}\n```\nDone."])
def test_a_fenced_answer_is_reported_and_not_forgiven(fence):
    score = score_document(fence.replace("{}", GOLD), GOLD)
    assert (score.parses, score.exact, score.fenced, score.surrounded) == (False, False, True, False)


@pytest.mark.parametrize("text", ["The answer: {}", "{} as you asked", "{}}", "{}\n{}"])
def test_an_answer_amid_text_is_reported_and_not_forgiven(text):
    score = score_document(text.replace("{}", GOLD), GOLD)
    assert (score.parses, score.exact, score.fenced, score.surrounded) == (False, False, False, True)


def test_neither_flag_is_raised_by_a_clean_or_a_broken_answer():
    for output in (GOLD, GOLD[:-3], "no idea", "```json\n{broken\n```", '{"a":"```"}'):
        score = score_document(output, GOLD)
        assert (score.fenced, score.surrounded) == (False, False), output


# ---- gold and summary


@pytest.mark.parametrize("gold", ["", "{", '{"a":NaN}', '{"a":1,"a":1}', GOLD[:-1]])
def test_gold_that_is_no_strict_json_is_the_users_to_mend(gold):
    with pytest.raises(UserError, match="gold answer is not strict JSON"):
        score_document(GOLD, gold)


def test_the_summary_is_the_mean_of_every_stage():
    outputs = [GOLD, GOLD.replace("Ada", "Eva"), f"```\n{GOLD}\n```", GOLD[:-1]]
    summary = summarize([score_document(output, GOLD) for output in outputs])
    assert summary["leaf_values_right"] == pytest.approx((1 + 2 / 3) / 4)
    del summary["leaf_values_right"]
    stages = {"parses": 0.5, "fits_schema": 0.5, "keys_right": 0.5, "exact": 0.25}
    assert summary == {"n": 4, **stages, "fenced": 0.25, "surrounded": 0.0}


def test_there_is_no_summary_of_nothing():
    with pytest.raises(ValueError, match="no scores"):
        summarize([])


def test_an_answer_that_is_no_json_passes_the_stages_by_its_form():
    assert plain_score(True) == DocumentScore(True, True, True, 1.0, True)
    assert plain_score(False, share=0.5, reason="3 is given twice").leaf_values_right == 0.5
    assert plain_score(False).reason == "wrong"
    malformed = plain_score(False, well_formed=False)
    assert not (malformed.parses or malformed.fits_schema or malformed.keys_right)
