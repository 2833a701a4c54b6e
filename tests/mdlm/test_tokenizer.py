from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from mdlm.errors import UserError
from mdlm.tokenizer import SPECIAL_TOKENS, Tokenizer

_random = random.Random(0)
_words = ["".join(_random.choices("aeiourstlnmäé", k=_random.randint(2, 7))) for _ in range(150)]
TEXTS = [
    f'{{"name": "{" ".join(_random.choices(_words, k=5))}", "paid": {i}.50, "tags": ["a", "b"], '
    f'"note": "größe ١٢٣ a,b--,--c; !:!{i}x"}}\n'
    for i in range(60)
]
STRUCTURE = '0123456789{}[]":,'
ROLES = list(SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 400)


@pytest.fixture(scope="module")
def reloaded(tokenizer, tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
    tokenizer.save(path)
    return Tokenizer.load(path)


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {tokenizer.mask_id, tokenizer.end_id, tokenizer.pad_id, tokenizer.begin_id}


def foreign_file(path, **changes) -> None:
    """A tokenizer.json as another project might ship it, with its own special tokens, truncation and padding."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    inner.add_special_tokens(["<|im_end|>"])
    inner.add_tokens(["<think>"])
    inner.enable_truncation(5)
    inner.enable_padding(length=12)
    path.write_text(json.dumps(json.loads(inner.to_str()) | changes))


@given(text=st.text() | st.text(alphabet=STRUCTURE + ' \n\t<|mask>end é漢🙂"\\'))
@example(text="e\u0301 \u200d\ufeff \r\n\x00 🏳️‍🌈 ١٢ Ⅻ ½ \u2028")
@settings(max_examples=300)
def test_any_unicode_text_survives_encode_and_decode(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(alphabet=STRUCTURE + " anme\n-.") | st.sampled_from(TEXTS))
@settings(max_examples=200)
def test_digits_and_structural_characters_are_tokens_of_their_own(tokenizer, text):
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(text)]
    assert [p for p in pieces if len(p) == 1 and p in STRUCTURE] == [c for c in text if c in STRUCTURE]


def test_no_token_of_the_vocabulary_holds_a_digit_or_a_structural_character_and_more(tokenizer):
    ordinary = set(range(tokenizer.vocab_size)) - special_ids(tokenizer)
    texts = [tokenizer.decode([token]) for token in ordinary]
    assert max(map(len, texts)) > 3, "merges of other text were learned"
    for text in texts:
        assert len(text) == 1 or not any(c in STRUCTURE or c.isdecimal() for c in text)


def test_decimal_digits_of_other_scripts_stand_alone(tokenizer):
    assert tokenizer.decode_pieces(tokenizer.encode("١٢٣")) == list("١٢٣")


def test_all_bytes_are_in_the_vocabulary():
    bytes_alone = Tokenizer.train(TEXTS, 260)
    assert bytes_alone.vocab_size == 256 + 4
    text = "".join(map(chr, range(0x800))) + "\u0800\uffff\U00010000\U0010ffff"
    assert len(bytes_alone.encode(text)) == len(text.encode())
    assert len(set(bytes_alone.encode(text))) == len(set(text.encode()))


@given(text=st.text())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_bytes_of_tokens_are_the_bytes_of_their_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
    lengths = tokenizer.byte_lengths()
    assert sum(lengths[token] for token in ids) == len(text.encode())
    assert lengths[tokenizer.end_id] == lengths[tokenizer.mask_id] == 0


@pytest.mark.parametrize("which", ["tokenizer", "reloaded"])
@pytest.mark.parametrize("name", SPECIAL_TOKENS.values())
def test_text_that_names_a_special_token_is_ordinary_text(which, name, request):
    tokenizer = request.getfixturevalue(which)
    text = f"a {name}{name} b"
    for ids in (tokenizer.encode(text), *tokenizer.encode_batch([text])):
        assert not special_ids(tokenizer) & set(ids)
        assert tokenizer.decode(ids) == text


def test_special_tokens_are_four_distinct_ids_that_decode_to_nothing(tokenizer):
    assert len(special_ids(tokenizer)) == 4
    ids = [tokenizer.begin_id, *tokenizer.encode("ab"), tokenizer.mask_id, tokenizer.end_id, tokenizer.pad_id]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode_pieces(ids)[-3:] == ["<|mask|>", "<|end|>", "<|pad|>"]


def test_pieces_are_printable(tokenizer):
    pieces = tokenizer.decode_pieces(tokenizer.encode("\x1b[31m\n\t é 漢 🙂") + list(range(tokenizer.vocab_size)))
    assert all(piece and piece.isprintable() for piece in pieces)
    assert "\\n" in pieces and "\\x1b" in pieces


def test_a_batch_is_encoded_as_its_texts_are(tokenizer):
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch([]) == [] and tokenizer.encode("") == []


def test_bytes_that_are_no_utf8_decode_to_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode("漢")[:1]) == "\ufffd"


def test_the_vocabulary_counts_the_special_tokens_and_is_never_padded(tokenizer):
    assert tokenizer.vocab_size == len(tokenizer.decode_pieces(range(400))) == 400
    assert Tokenizer.train(["abc"], 5000).vocab_size == 260
    assert Tokenizer.train(TEXTS, 270).vocab_size == 270


def test_the_same_texts_give_the_same_tokenizer(tokenizer):
    script = (
        "import json, sys; from mdlm.tokenizer import Tokenizer; "
        "print(Tokenizer.train(json.load(sys.stdin), 400).fingerprint())"
    )
    other = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == tokenizer.fingerprint() == Tokenizer.train(iter(TEXTS), 400).fingerprint()


def test_the_fingerprint_survives_save_and_load_and_tells_tokenizers_apart(tokenizer, reloaded):
    assert reloaded.fingerprint() == tokenizer.fingerprint()
    assert Tokenizer.train(TEXTS, 270).fingerprint() != tokenizer.fingerprint()
    assert Tokenizer.train(TEXTS[:30], 400).fingerprint() != tokenizer.fingerprint()


def test_save_and_load_keep_ids(tokenizer, reloaded):
    assert reloaded.vocab_size == tokenizer.vocab_size
    assert reloaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert [getattr(reloaded, f"{role}_id") for role in ROLES] == [getattr(tokenizer, f"{role}_id") for role in ROLES]


def test_save_leaves_the_old_file_whole_when_it_fails(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text("old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError):
        tokenizer.save(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_foreign_tokenizer_gets_the_special_tokens_it_lacks(tmp_path):
    path = tmp_path / "tokenizer.json"
    foreign_file(path)
    size = tokenizers.Tokenizer.from_file(str(path)).get_vocab_size()
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == size + 4
    assert special_ids(tokenizer) == set(range(size, size + 4))


def test_a_token_of_the_file_can_serve_as_a_special_one_by_name_or_id(tmp_path):
    path = tmp_path / "tokenizer.json"
    foreign_file(path)
    inner = tokenizers.Tokenizer.from_file(str(path))
    tokenizer = Tokenizer.load(path, {"end": "<|im_end|>", "begin": inner.token_to_id("<think>")})
    assert (tokenizer.end_id, tokenizer.begin_id) == (inner.token_to_id("<|im_end|>"), inner.token_to_id("<think>"))
    assert tokenizer.vocab_size == inner.get_vocab_size() + 2
    text = "x<|im_end|><think> <|mask|>"
    assert not special_ids(tokenizer) & set(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    tokenizer.save(path)
    again = Tokenizer.load(path, {role: getattr(tokenizer, f"{role}_id") for role in ROLES})
    assert again.fingerprint() == tokenizer.fingerprint() and again.specials == tokenizer.specials


def test_truncation_and_padding_in_a_file_take_no_text_away(tmp_path):
    path = tmp_path / "tokenizer.json"
    foreign_file(path)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]
    assert len(tokenizer.encode("a")) == 1


@pytest.mark.parametrize(
    ("specials", "message"),
    [
        ({"stop": "<|im_end|>"}, "mask, end, pad, begin"),
        ({"end": "a"}, "ordinary token"),
        ({"end": 10**6}, "1000000"),
        ({"end": -1}, "-1"),
        ({"end": "<|im_end|>", "pad": "<|im_end|>"}, "two special tokens"),
    ],
)
def test_a_token_that_cannot_be_special_is_refused(tmp_path, specials, message):
    foreign_file(tmp_path / "t.json")
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path / "t.json", specials)


def test_a_special_token_that_text_would_produce_is_refused(tmp_path):
    """With `ignore_merges` a word that stands in the vocabulary becomes its token, a special one included."""
    path = tmp_path / "t.json"
    foreign_file(path)
    content = json.loads(path.read_text())
    content["model"]["ignore_merges"] = True
    content["model"]["vocab"]["mask"] = token = len(content["model"]["vocab"]) + 2
    content["added_tokens"].append(content["added_tokens"][0] | {"id": token, "content": "mask"})
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="text can produce 'mask'"):
        Tokenizer.load(path, {"mask": "mask"})


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": {"type": "BPE"}}', "\x00", '"text"'])
def test_a_broken_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json is not a usable") as caught:
        Tokenizer.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_other_encodings_are_user_errors(tmp_path):
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(UserError, match="cannot read"):
            Tokenizer.load(path)
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(UserError, match="not a usable"):
        Tokenizer.load(tmp_path / "latin.json")


@pytest.mark.parametrize("size", [0, 259, -5])
def test_a_vocabulary_too_small_for_all_bytes_is_refused(size):
    with pytest.raises(UserError, match="at least 260"):
        Tokenizer.train(TEXTS, size)


def test_lone_surrogates_are_a_user_error(tokenizer):
    for call in (tokenizer.encode, lambda t: tokenizer.encode_batch(["a", t]), lambda t: Tokenizer.train([t], 300)):
        with pytest.raises(UserError, match="lone surrogate U\\+D800 at character 3"):
            call("ab\ud800c")


@pytest.mark.parametrize("token", [-1, None, 2**40])
def test_an_id_outside_the_vocabulary_is_named(tokenizer, token):
    token = tokenizer.vocab_size if token is None else token
    for call in (tokenizer.decode, tokenizer.decode_pieces):
        with pytest.raises(UserError, match=f"{token} is outside"):
            call([5, token])
