"""`code`: gaps in Python's own library, split by module and judged by text, similarity and parsing."""

from __future__ import annotations

import ast
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.corpora import stdlib_files
from evals.tasks import Example, get_task
from evals.tasks.code import snippets, spans_of
from evals.tasks.infill import edit_similarity, gap_prompt, sides

CODE = get_task("code")
SOURCE = '''"""A module."""
import os


def area(width, height):
    if width < 0:
        raise ValueError("negative")
    return width * height
'''


def rows(split="train", count=40, seed=0, **knobs):
    return list(CODE.generate(split, count, seed, CODE.read_knobs(knobs)))


@pytest.mark.parametrize("split", CODE.splits)
@pytest.mark.parametrize("span", ["line", "expression", "characters"])
def test_prefix_answer_and_suffix_are_python_and_gold_is_right(split, span):
    for row in rows(split, 15, span=span):
        prefix, suffix = sides(row.prompt)
        ast.parse(prefix + row.response + suffix)
        assert 4 <= len(row.response) <= 60
        assert len(row.response) <= len(prefix + suffix), "there is something to go by"
        assert len(prefix + row.response + suffix) <= 140
        assert CODE.score(row.response, row).exact
        assert not CODE.score(row.response + "~", row).exact


def test_a_line_or_an_expression_is_cut_out_whole():
    for row in rows(span="line"):
        prefix, suffix = sides(row.prompt)
        assert not prefix.rpartition("\n")[2].strip()
        assert suffix == "" or suffix.startswith("\n")
    for row in rows(span="expression"):
        prefix, suffix = sides(row.prompt)
        ast.parse(f"({row.response}\n)", mode="eval")
        whole = ast.unparse(ast.parse(prefix + row.response + suffix))
        assert whole == ast.unparse(ast.parse(f"{prefix}({row.response}\n){suffix}")), "brackets change nothing"


def test_what_is_cut_from_a_source_never_changes():
    function = SOURCE[SOURCE.index("def") :].rstrip("\n")
    snippet = 'if width < 0:\n    raise ValueError("negative")\nreturn width * height'
    assert snippets(SOURCE, 120) == (function, snippet)
    assert snippets(SOURCE, 80) == (snippet, 'raise ValueError("negative")')

    def cut(kind):
        return [snippet[start:end] for start, end in spans_of(snippet, kind, Random(0))]

    assert cut("line") == ["if width < 0:", 'raise ValueError("negative")', "return width * height"]
    assert {"width < 0", 'ValueError("negative")', "width * height"} <= set(cut("expression"))
    assert cut("characters") == ['ror("negative")\nreturn width']


def test_rows_can_be_made_again_and_seed_and_split_change_them():
    assert rows(count=10) == rows()[:10]
    assert (
        len({tuple(made) for made in (rows(), rows(seed=1), rows("dev"), rows("test"), rows(span="characters"))}) == 5
    )


def test_no_module_stands_in_two_splits():
    modules = [{row.template for row in rows(split, 150)} for split in CODE.splits]
    assert all(len(some) > 3 for some in modules)
    assert not modules[0] & modules[1] and not modules[0] & modules[2] and not modules[1] & modules[2]


def test_no_snippet_of_dev_or_test_stands_in_a_module_of_train():
    def flat(text):
        return "\n".join(line.strip() for line in text.splitlines())

    trained = "\n".join(flat(path.read_text(errors="replace")) for split, _, path in stdlib_files() if split == "train")
    for split in ("dev", "test"):
        for row in rows(split, 60):
            prefix, suffix = sides(row.prompt)
            assert f"\n{flat(prefix + row.response + suffix)}\n" not in trained


def test_rows_seldom_repeat():
    assert len({row.prompt for row in rows(count=300)}) > 290


def test_an_answer_that_breaks_the_syntax_fails_the_first_stage_and_keeps_its_similarity():
    row = Example(gap_prompt("if x:\n    ", "\nprint(y)"), "y = x + 1", "module", "test")
    broken = CODE.score("y = x + (", row)
    assert not broken.parses and not broken.exact and broken.reason == "the whole does not parse"
    assert broken.leaf_values_right == pytest.approx(8 / 9)
    other = CODE.score("y = x + 2", row)
    assert other.parses and not other.exact and other.reason == "another text"


@given(st.text(max_size=12), st.text(max_size=12))
def test_similarity_is_a_share_and_symmetric(ours, gold):
    assert 0 <= edit_similarity(ours, gold) == edit_similarity(gold, ours) <= 1
    assert (edit_similarity(ours, gold) == 1) == (ours == gold)


@pytest.mark.parametrize(
    ("ours", "gold", "distance"), [("kitten", "sitting", 3), ("flaw", "lawn", 2), ("", "abc", 3), ("abc", "abc", 0)]
)
def test_similarity_counts_the_fewest_edits(ours, gold, distance):
    assert edit_similarity(ours, gold) == pytest.approx(1 - distance / max(len(ours), len(gold)))


def test_sides_are_read_back_from_the_prompt():
    assert sides(gap_prompt("a = ", "\nb")) == ("a = ", "\nb")
