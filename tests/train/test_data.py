from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from train.data import open_dataset, prepare, read_texts, split_jsonl
from train.sources import PIECE_CHARACTERS

PAIRS = [{"prompt": f"item {i} of ten", "response": f'{{"item":{i},"name":"größe {i}"}}', "id": i} for i in range(10)]
TEXTS = [{"text": "one two three " * (3 * i + 1)} for i in range(6)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes alone: one token is one byte, so lengths can be counted by hand."""
    return Tokenizer.train([], 260)


@pytest.fixture(scope="module")
def merging() -> Tokenizer:
    return Tokenizer.train([row["text"] for row in TEXTS] + [row["response"] for row in PAIRS], 400)


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def prepared(source, tokenizer, prompt_length=64, response_length=64, **options):
    folder = Path(source).parent / "tokens"
    manifest = prepare(
        source, folder, tokenizer, prompt_length=prompt_length, response_length=response_length, **options
    )
    dataset = open_dataset(folder, verify=True)
    assert dataset.manifest == manifest
    return dataset


def rows_of(dataset, tokenizer) -> list[tuple[str, str, bool]]:
    """Rows as text; checks what holds for every row of every source."""
    manifest, rows = dataset.manifest, []
    for i in range(len(dataset)):
        prompt, response, ends = dataset.row(i)
        assert prompt[0] == tokenizer.begin_id and len(prompt) <= manifest.prompt_length
        assert 0 < len(response) <= manifest.response_length - ends
        assert not {tokenizer.mask_id, tokenizer.end_id, tokenizer.pad_id} & {*prompt.tolist(), *response.tolist()}
        assert max(*prompt, *response) < manifest.vocab_size
        rows.append((tokenizer.decode(prompt), tokenizer.decode(response), ends))
    return rows


# Rows


def test_prompt_and_response_come_back_as_they_were(tmp_path, merging):
    dataset = prepared(write_rows(tmp_path / "a.jsonl", PAIRS), merging)
    assert rows_of(dataset, merging) == [(row["prompt"], row["response"], True) for row in PAIRS]


def test_manifest_counts_what_is_in_the_files(tmp_path, tokenizer):
    dataset = prepared(write_rows(tmp_path / "a.jsonl", PAIRS), tokenizer)
    manifest = dataset.manifest
    responses = [len(row["response"].encode()) for row in PAIRS]
    prompts = [len(row["prompt"].encode()) + 1 for row in PAIRS]
    assert (manifest.rows, manifest.prompt_tokens, manifest.response_tokens) == (10, sum(prompts), sum(responses))
    assert (manifest.prompt_max, manifest.response_max) == (max(prompts), max(responses))
    assert manifest.response_bytes == sum(responses)
    assert manifest.response_mean == pytest.approx(np.mean(responses))
    assert manifest.response_std == pytest.approx(np.std(responses))
    assert manifest.source == "a.jsonl" and manifest.tokenizer_sha256 == tokenizer.fingerprint()
    assert str(tmp_path) not in (tmp_path / "tokens/manifest.json").read_text()
    assert dataset.response_tokens.tolist() == responses and dataset.ends.all()


def test_an_empty_prompt_is_the_begin_token_alone(tmp_path, tokenizer):
    dataset = prepared(write_rows(tmp_path / "a.jsonl", [{"prompt": "", "response": "x"}]), tokenizer)
    assert dataset.row(0)[0].tolist() == [tokenizer.begin_id]


def test_lengths_that_fit_exactly_are_kept(tmp_path, tokenizer):
    rows = [{"prompt": "a" * 7, "response": "b" * 11}, {"prompt": "a" * 8, "response": "b"}]
    dataset = prepared(write_rows(tmp_path / "a.jsonl", rows), tokenizer, prompt_length=8, response_length=12)
    assert rows_of(dataset, tokenizer) == [("a" * 7, "b" * 11, True)]
    assert (dataset.manifest.too_long_prompt, dataset.manifest.too_long_response) == (1, 0)


LONG = [
    {"prompt": "fits", "response": "fits"},
    {"prompt": "prompt0123", "response": "fits"},
    {"prompt": "fits", "response": "response012345"},
    {"prompt": "prompt0123", "response": "response012345"},
]


def test_too_long_rows_are_dropped_and_counted(tmp_path, tokenizer):
    dataset = prepared(write_rows(tmp_path / "a.jsonl", LONG), tokenizer, prompt_length=8, response_length=12)
    manifest = dataset.manifest
    assert rows_of(dataset, tokenizer) == [("fits", "fits", True)]
    assert (manifest.rows_dropped, manifest.rows_cut) == (3, 0)
    assert (manifest.too_long_prompt, manifest.too_long_response) == (2, 2)
    assert (manifest.longest_prompt, manifest.longest_response) == (11, 14)
    assert "2 prompts" in manifest.summary() and "3 rows dropped" in manifest.summary()


def test_cut_keeps_the_end_of_a_prompt_and_the_start_of_a_response(tmp_path, tokenizer):
    path = write_rows(tmp_path / "a.jsonl", LONG)
    dataset = prepared(path, tokenizer, prompt_length=8, response_length=12, too_long="cut")
    assert rows_of(dataset, tokenizer) == [
        ("fits", "fits", True),
        ("mpt0123", "fits", True),
        ("fits", "response0123", False),
        ("mpt0123", "response0123", False),
    ]
    manifest = dataset.manifest
    assert (manifest.rows_dropped, manifest.rows_cut) == (0, 3)
    assert (manifest.too_long_prompt, manifest.too_long_response) == (2, 2)
    assert manifest.response_bytes == 4 + 4 + 12 + 12


def test_cut_with_room_for_begin_alone_keeps_no_prompt_text(tmp_path, tokenizer):
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "abc", "response": "x"}])
    assert rows_of(prepared(path, tokenizer, prompt_length=1, too_long="cut"), tokenizer) == [("", "x", True)]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    response_length=st.integers(2, 13),
)
@settings(max_examples=60, deadline=None)
def test_windows_of_a_text_join_to_the_text_and_only_the_last_ends(
    tmp_path_factory, tokenizer, lengths, response_length
):
    texts = [("abcdefghij" * 4)[:length] for length in lengths]
    path = write_rows(tmp_path_factory.mktemp("windows") / "a.jsonl", [{"text": text} for text in texts])
    dataset = prepared(path, tokenizer, prompt_length=1, response_length=response_length)
    rows = rows_of(dataset, tokenizer)
    joined, windows = [""], [0]
    for prompt, response, ends in rows:
        assert prompt == ""
        assert ends or len(response) >= response_length - 1
        joined[-1] += response
        windows[-1] += 1
        if ends:
            joined.append("")
            windows.append(0)
    assert joined == [*texts, ""]
    assert dataset.manifest.windows == sum(count for count in windows if count > 1)
    assert dataset.manifest.response_bytes == sum(lengths)


def test_a_plain_text_file_is_one_text(tmp_path, merging):
    text = '\tEin größeres Beispiel, {"a": 12}\r\n\n漢字 ' * 5000 + "end"
    path = tmp_path / "book.txt"
    path.write_bytes(text.encode())
    dataset = prepared(path, merging, response_length=100)
    rows = rows_of(dataset, merging)
    ids = [token for i in range(len(dataset)) for token in dataset.row(i)[1].tolist()]
    assert merging.decode(ids) == text
    assert [ends for _, _, ends in rows] == [False] * (len(rows) - 1) + [True]
    assert all(count == 100 for count in dataset.response_tokens[:-2])
    assert dataset.manifest.response_bytes == len(text.encode())


def test_reading_a_text_in_pieces_gives_the_tokens_of_the_whole(tmp_path, merging):
    text = 'one two  three\n\n{"größe": [1, 22]} one\t' * 9000
    assert len(text) > 4 * PIECE_CHARACTERS
    path = tmp_path / "book.md"
    path.write_text(text, encoding="utf-8")
    dataset = prepared(path, merging)
    assert [t for i in range(len(dataset)) for t in dataset.row(i)[1].tolist()] == merging.encode(text)


def test_a_text_without_white_space_and_one_of_white_space_alone_come_through(tmp_path, tokenizer):
    for text in ("漢" * (PIECE_CHARACTERS + 5), " " * (PIECE_CHARACTERS + 5)):
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        dataset = prepared(tmp_path / "a.txt", tokenizer)
        ids = [t for i in range(len(dataset)) for t in dataset.row(i)[1].tolist()]
        assert tokenizer.decode(ids) == text


def test_a_byte_order_mark_and_windows_line_ends_are_no_text(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\r\n{"text": "two"}\r\n')
    assert [row[1] for row in rows_of(prepared(path, tokenizer), tokenizer)] == ["one", "two"]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone")
    assert rows_of(prepared(tmp_path / "a.txt", tokenizer), tokenizer) == [("", "one", True)]


def test_every_text_of_a_source_can_be_read_for_a_tokenizer(tmp_path):
    assert list(read_texts(write_rows(tmp_path / "a.jsonl", PAIRS[:1]))) == [PAIRS[0]["prompt"], PAIRS[0]["response"]]
    assert list(read_texts(write_rows(tmp_path / "b.jsonl", TEXTS[:2]))) == [row["text"] for row in TEXTS[:2]]


REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real data is not there")
@pytest.mark.parametrize("name", ["addresses", "receipts", "restaurants"])
def test_real_rows_come_back_as_they_were(tmp_path, name):
    train = split_jsonl(REAL / f"{name}.jsonl", tmp_path)["train"]
    tokenizer = Tokenizer.train(read_texts(train), 512)
    rows = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    dataset = prepared(train, tokenizer, prompt_length=2000, response_length=400)
    assert rows_of(dataset, tokenizer) == [(row["prompt"], row["response"], True) for row in rows]


# The folder


def test_an_equal_request_reuses_the_folder_and_any_other_rebuilds_it(tmp_path, tokenizer, merging):
    path = write_rows(tmp_path / "a.jsonl", PAIRS)

    def made(tokenizer=tokenizer, **options) -> int:
        prepared(path, tokenizer, **options)
        return (tmp_path / "tokens/tokens.bin").stat().st_ino

    first = made()
    assert made() == first
    changed = [made(too_long="cut"), made(prompt_length=63), made(merging), made()]
    write_rows(path, PAIRS[:5])
    changed.append(made())
    assert all(a != b for a, b in zip([first, *changed], changed, strict=False))
    assert len(open_dataset(tmp_path / "tokens")) == 5
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "tokens"]


def test_a_failed_preparation_leaves_the_old_folder_whole(tmp_path, tokenizer):
    path = write_rows(tmp_path / "a.jsonl", PAIRS)
    prepared(path, tokenizer)
    path.write_text("broken")
    with pytest.raises(UserError):
        prepared(path, tokenizer)
    assert len(open_dataset(tmp_path / "tokens", verify=True)) == 10


def test_a_folder_with_other_things_is_never_replaced(tmp_path, tokenizer):
    path = write_rows(tmp_path / "a.jsonl", PAIRS)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens/thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="thesis"):
        prepared(path, tokenizer)
    with pytest.raises(UserError, match="is a file"):
        prepare(path, path, tokenizer, prompt_length=8, response_length=8)


def test_a_damaged_folder_is_named_and_built_again(tmp_path, tokenizer):
    path, folder = write_rows(tmp_path / "a.jsonl", PAIRS), tmp_path / "tokens"
    prepared(path, tokenizer)
    manifest = json.loads((folder / "manifest.json").read_text())
    tokens, table = (folder / "tokens.bin").read_bytes(), (folder / "rows.npy").read_bytes()
    for name, content, message in [
        ("tokens.bin", tokens[:-1], r"tokens\.bin has \d+ bytes instead of \d+"),
        ("rows.npy", table[:-8], r"rows\.npy is damaged"),
        ("rows.npy", table[:-1] + b"\x07", r"rows\.npy is damaged"),
        ("manifest.json", b"{", r"manifest\.json is damaged"),
        ("manifest.json", json.dumps(manifest | {"version": 99}).encode(), "another version"),
        ("manifest.json", json.dumps(manifest | {"extra": 1}).encode(), "extra"),
        ("manifest.json", json.dumps(manifest | {"dtype": "object"}).encode(), "dtype"),
        ("manifest.json", json.dumps(manifest | {"rows": "ten"}).encode(), "rows"),
    ]:
        (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            open_dataset(folder)
        assert len(prepared(path, tokenizer)) == 10
    (folder / "tokens.bin").unlink()
    with pytest.raises(UserError, match=r"tokens\.bin is missing"):
        open_dataset(folder)
    with pytest.raises(UserError, match="no prepared data"):
        open_dataset(tmp_path / "nowhere")


def test_a_changed_token_is_found_when_asked(tmp_path, tokenizer):
    prepared(write_rows(tmp_path / "a.jsonl", PAIRS), tokenizer)
    tokens = bytearray((tmp_path / "tokens/tokens.bin").read_bytes())
    tokens[0] ^= 1
    (tmp_path / "tokens/tokens.bin").write_bytes(tokens)
    open_dataset(tmp_path / "tokens")
    with pytest.raises(UserError, match="checksum"):
        open_dataset(tmp_path / "tokens", verify=True)


def test_a_vocabulary_over_65536_takes_four_bytes_a_token(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "wide.json")
    content = json.loads((tmp_path / "wide.json").read_text(encoding="utf-8"))
    content["model"]["vocab"] |= {f"filler{i}": 260 + i for i in range(70_000)}
    (tmp_path / "wide.json").write_text(json.dumps(content), encoding="utf-8")
    wide = Tokenizer.load(tmp_path / "wide.json", {"end": "<|end of text|>"})
    dataset = prepared(write_rows(tmp_path / "a.jsonl", PAIRS), wide)
    assert (dataset.manifest.dtype, dataset.manifest.vocab_size) == ("uint32", 70_261)
    assert rows_of(dataset, wide) == [(row["prompt"], row["response"], True) for row in PAIRS]
