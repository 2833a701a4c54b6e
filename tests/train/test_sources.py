from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from train.data import TokenDataset, open_dataset, prepare, split_jsonl

PAIRS = [{"prompt": f"item {i} of ten", "response": f'{{"item":{i},"name":"größe {i}"}}'} for i in range(10)]
TEXTS = [{"text": "one two three " * (3 * i + 1)} for i in range(6)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([], 260)


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepared(source: Path, tokenizer: Tokenizer, response_length: int = 64, **options) -> TokenDataset:
    folder = source.parent / "tokens"
    prepare(source, folder, tokenizer, prompt_length=64, response_length=response_length, **options)
    return open_dataset(folder, verify=True)


# Sources that `datasets` reads


def arrow_table(rows):
    import pyarrow

    return pyarrow.Table.from_pylist(rows)


def write_parquet(path: Path, rows) -> Path:
    from pyarrow import parquet

    parquet.write_table(arrow_table(rows), path / "rows.parquet")
    return path / "rows.parquet"


def write_arrow(path: Path, rows) -> Path:
    from pyarrow import ipc

    table = arrow_table(rows)
    with ipc.new_file(path / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    return path / "rows.arrow"


def write_folder(path: Path, rows) -> Path:
    from datasets import Dataset

    Dataset(arrow_table(rows)).save_to_disk(path / "saved")
    return path / "saved"


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_folder])
def test_tables_give_the_same_tokens_as_json_lines(tmp_path, tokenizer, write):
    for rows in (PAIRS, TEXTS):
        of_table = prepared(write(tmp_path, rows), tokenizer)
        of_lines = prepared(write_rows(tmp_path / "a.jsonl", rows), tokenizer)
        assert of_table.manifest.tokens_sha256 == of_lines.manifest.tokens_sha256
        assert of_table.manifest.rows_sha256 == of_lines.manifest.rows_sha256


def test_a_saved_folder_with_several_splits_asks_for_one(tmp_path, tokenizer):
    from datasets import Dataset, DatasetDict

    splits = {"train": Dataset(arrow_table(PAIRS)), "test": Dataset(arrow_table(PAIRS[:2]))}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    for split in (None, "dev"):
        with pytest.raises(UserError, match="train, test"):
            prepared(tmp_path / "saved", tokenizer, split=split)
    assert len(prepared(tmp_path / "saved", tokenizer, split="test")) == 2


def test_a_hub_set_is_asked_for_by_owner_name_and_config(tmp_path, tokenizer, monkeypatch):
    import datasets

    asked = []

    def hub(*arguments, **options):
        asked.append((arguments, options))
        return datasets.load_from_disk(write_folder(tmp_path, PAIRS))

    monkeypatch.setattr(datasets, "load_dataset", hub)
    folder = tmp_path / "tokens"
    manifest = prepare("hub:owner/name:main", folder, tokenizer, prompt_length=64, response_length=64)
    assert asked == [(("owner/name", "main"), {"split": None})]
    assert (manifest.source, manifest.rows) == ("hub:owner/name:main", 10)


def test_tables_that_cannot_be_used_are_user_errors(tmp_path, tokenizer):
    (tmp_path / "broken.parquet").write_text("no table")
    with pytest.raises(UserError, match=r"broken\.parquet cannot be read"):
        prepared(tmp_path / "broken.parquet", tokenizer)
    with pytest.raises(UserError, match="'question', 'answer'"):
        prepared(write_parquet(tmp_path, [{"question": "a", "answer": "b"}]), tokenizer)
    path = write_parquet(tmp_path, [{"text": "a"}, {"text": None}])
    with pytest.raises(UserError, match=r"rows\.parquet:2: .*not a string"):
        prepared(path, tokenizer)
    assert prepared(path, tokenizer, on_error="skip").manifest.rows_skipped == 1


# Errors


BROKEN = {
    "not json": (b'{"text": "a"', "broken JSON"),
    "a list": (b'["a", "b"]', "list instead of an object"),
    "null": (b"null", "NoneType instead"),
    "other keys": (b'{"question": "a", "response": "b"}', "'question', 'response'"),
    "no keys": (b"{}", "here is nothing"),
    "a number": (b'{"text": 5}', '"text" is int'),
    "a null": (b'{"text": null}', '"text" is NoneType'),
    "an empty text": (b'{"text": ""}', '"text" is empty'),
    "the other kind": (b'{"prompt": "a", "response": "b"}', 'row of "prompt" and "response" in a file of "text"'),
    "latin-1": (b'{"text": "gr\xf6\xdfe"}', "byte 13 of the line is not UTF-8"),
    "a surrogate": (b'{"text": "a\\ud800"}', r"lone surrogate U\+D800"),
    "a huge number": (b'{"text": ' + b"1" * 5000 + b"}", "unreadable JSON"),
    "deep nesting": (b"[" * 200_000, "unreadable JSON"),
}


@pytest.mark.parametrize(("line", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_line_stops_with_its_number_or_is_skipped_and_counted(tmp_path, tokenizer, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "first"}\n\n' + line + b'\n{"text": "last"}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl:3: .*{message}") as caught:
        prepared(path, tokenizer)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert os.listdir(tmp_path) == ["a.jsonl"], "nothing half written"
    dataset = prepared(path, tokenizer, on_error="skip")
    assert [tokenizer.decode(dataset.row(i)[1]) for i in range(len(dataset))] == ["first", "last"]
    assert dataset.manifest.rows_skipped == 1
    assert "a.jsonl:3" in dataset.manifest.summary()


def test_an_empty_response_is_an_error(tmp_path, tokenizer):
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "a", "response": ""}])
    with pytest.raises(UserError, match=r'a\.jsonl:1: "response" is empty'):
        prepared(path, tokenizer)


def test_files_that_cannot_be_used_are_user_errors(tmp_path, tokenizer):
    def refused(name: str, content: bytes | None, message: str, **options):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            prepared(tmp_path / name, tokenizer, **options)

    refused("missing.jsonl", None, "no data file")
    refused("empty.jsonl", b"", "is empty")
    refused("blank.jsonl", b"\n\n", "holds no rows")
    refused("rows.json", b"[]", "one JSON object a line")
    refused("latin.txt", b"one\ntwo \xe9\n", r"latin\.txt:2: not UTF-8")
    refused("cut.txt", "one\nzwölf".encode()[:7], r"cut\.txt:2: not UTF-8")
    refused("a.jsonl", b'{"text": "a"}', "no split", split="train")
    refused("bad.jsonl", b"x\ny\n", "none of the 2 rows.*broken JSON", on_error="skip")
    (tmp_path / "folder").mkdir()
    refused("folder", None, "is a folder")
    long = json.dumps({"prompt": "a" * 99, "response": "b" * 88}).encode()
    refused("long.jsonl", long, r"all 1 rows.*up to 100 tokens \(prompt_length 64\).*up to 89 ")
    refused("a.jsonl", b'{"text": "a"}', "too small", response_length=1)
    assert not (tmp_path / "tokens").exists()


# Splits


def test_a_split_keeps_every_row_once_and_equal_rows_together(tmp_path):
    rows = [{"prompt": f"question {i % 700}", "response": "yes", "id": i} for i in range(1000)]
    paths = split_jsonl(write_rows(tmp_path / "a.jsonl", rows), tmp_path / "split")
    parts = {name: [json.loads(line) for line in path.read_text().splitlines()] for name, path in paths.items()}
    assert list(parts) == ["train", "dev", "test"]
    assert sorted(row["id"] for part in parts.values() for row in part) == list(range(1000))
    prompts = [{row["prompt"] for row in part} for part in parts.values()]
    assert not prompts[0] & prompts[1] and not prompts[0] & prompts[2] and not prompts[1] & prompts[2]
    # 700 distinct rows at 0.8: four standard deviations of the binomial are 42 rows; the hash has no seed.
    assert abs(len(prompts[0]) - 560) < 42


def test_a_split_does_not_depend_on_the_other_rows(tmp_path):
    rows = [{"text": f"text {i}"} for i in range(400)]
    whole = split_jsonl(write_rows(tmp_path / "a.jsonl", rows), tmp_path / "whole", (0.5, 0.5), ("a", "b"))
    half = split_jsonl(write_rows(tmp_path / "b.jsonl", rows[::-2]), tmp_path / "half", (0.5, 0.5), ("a", "b"))
    for name in ("a", "b"):
        assert set(half[name].read_text().splitlines()) <= set(whole[name].read_text().splitlines())


def test_splits_that_cannot_be_made_are_user_errors(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", TEXTS[:1])
    with pytest.raises(UserError, match="would be empty"):
        split_jsonl(path, tmp_path / "split")
    for fractions in [(0.5, 0.5), (0.5, 0.6, 0.1), (1.2, -0.1, -0.1)]:
        with pytest.raises(UserError, match="fractions"):
            split_jsonl(path, tmp_path / "split", fractions)
    path.write_text('{"text": "a"}\n{"text":')
    with pytest.raises(UserError, match=r"a\.jsonl:2: broken JSON.*delete the line"):
        split_jsonl(path, tmp_path / "split")
    with pytest.raises(UserError, match="no data file"):
        split_jsonl(tmp_path / "none.jsonl", tmp_path / "split")
    assert not (tmp_path / "split").exists()
