"""Text to token ids and back: byte-level BPE trained on the run's own data, or an existing `tokenizer.json`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from mdlm.errors import UserError

SPECIAL_TOKENS = {"mask": "<|mask|>", "end": "<|end|>", "pad": "<|pad|>", "begin": "<|begin|>"}

# One alternative a line. Every digit and every structural character of JSON is a piece of its own, so that no merge
# can hide one: a model that has to place a brace or copy a digit always meets the same token.
_ALONE = r'\p{Nd}{}\[\]":,'
_PIECE = (
    rf"[{_ALONE}]"
    r"| ?[\p{L}\p{M}]+"
    rf"| ?[^\s\p{{L}}\p{{M}}{_ALONE}]+"
    rf"|\s+(?=[{_ALONE}])"  # indentation before a brace or a quote stays whole
    r"|\s+(?!\S)"  # otherwise the last space goes with the word that follows
    r"|\s+"
)

# Byte-level BPE writes printable bytes as themselves, the others as the characters from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}


class Tokenizer:
    """A `tokenizers.Tokenizer` with four special tokens that no text can produce.

    `mask_id`, `end_id`, `pad_id`, `begin_id` are the ids of the special tokens, `specials` maps the four roles to
    their names. `vocab_size` is the largest id plus one, special tokens included. Build one with `train` or `load`.
    """

    def __init__(self, inner: tokenizers.Tokenizer, specials: Mapping[str, str]) -> None:
        # A file may carry padding and truncation for its own model; here they would lose text in silence.
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # not stored in the file, hence set here, once for every way in
        self._inner = inner
        self.specials = dict(specials)
        vocabulary: dict[str, int] = inner.get_vocab(with_added_tokens=True)
        ids = {role: vocabulary[specials[role]] for role in SPECIAL_TOKENS}
        self.mask_id, self.end_id, self.pad_id, self.begin_id = (ids[role] for role in SPECIAL_TOKENS)
        self._special_ids = {self.mask_id, self.end_id, self.pad_id, self.begin_id}
        self.vocab_size = max(vocabulary.values()) + 1
        self._byte_level = (json.loads(inner.to_str())["decoder"] or {}).get("type") == "ByteLevel"

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Byte-level BPE learned from `texts`; digits and `{}[]":,` are never merged with anything.

        All 256 bytes are in the vocabulary, so any Unicode text survives encode and decode. `vocab_size` counts bytes
        and special tokens; where the texts hold too few repeated pairs to fill it, the result is smaller. The same
        texts give the same tokenizer. Raises `UserError` for a vocabulary too small to hold bytes and special tokens.
        """
        smallest = 256 + len(SPECIAL_TOKENS)
        if vocab_size < smallest:
            raise UserError(
                f"vocab_size {vocab_size} is too small: 256 bytes and {len(SPECIAL_TOKENS)} special tokens need at "
                f"least {smallest}"
            )
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(_PIECE), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=list(SPECIAL_TOKENS.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator((_unicode(text) for text in texts), trainer)
        return cls(inner, SPECIAL_TOKENS)

    @classmethod
    def load(cls, path: str | Path, specials: Mapping[str, str | int] | None = None) -> Tokenizer:
        """Reads a `tokenizer.json`.

        `specials` says which token of the file serves as `mask`, `end`, `pad` or `begin`, by name or by id, e.g.
        `{"end": "<|im_end|>"}`; a role it leaves out has its name from `SPECIAL_TOKENS`. A name that the file lacks is
        appended to the vocabulary. Raises `UserError` for a missing or broken file and for a token that cannot be
        special: one that ordinary text produces, or one that has two roles.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} is not a usable tokenizer.json ({error}); write it again or name another"
            ) from error
        return cls.from_content(content, specials, path)

    @classmethod
    def from_content(cls, content: object, specials: Mapping[str, str | int] | None, path: Path) -> Tokenizer:
        """`load` for what a `tokenizer.json` holds; `path` is named in errors."""
        try:
            inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library reports every unusable file as a bare Exception
            raise UserError(
                f"{path} is not a usable tokenizer.json ({error}); write it again or name another"
            ) from error
        return cls(inner, _claim_specials(inner, specials or {}, path))

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json` to `path`, whole or not at all; an existing file is replaced."""
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.write_text(self._inner.to_str(pretty=True), encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, nothing added; the name of a special token inside it is ordinary text.

        Raises `UserError` for text with lone surrogates, which no byte sequence stands for.
        """
        return self._inner.encode(_unicode(text), add_special_tokens=False).ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` for many texts, on all cores."""
        batch = [_unicode(text) for text in texts]
        return [encoding.ids for encoding in self._inner.encode_batch_fast(batch, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out; bytes that are not UTF-8 become U+FFFD.

        Raises `UserError` for an id outside the vocabulary.
        """
        return self._inner.decode([self._known(token) for token in ids], skip_special_tokens=True)

    def decode_pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable string for each id, for drawing: special tokens by name, control characters escaped."""
        return [self._piece(self._known(token)) for token in ids]

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes that an id of a byte-level vocabulary stands for; None for a special one or another vocabulary."""
        name = self._inner.id_to_token(token) or ""
        if not self._byte_level or token in self._special_ids or not set(name) <= _BYTE_OF.keys():
            return None
        return bytes(_BYTE_OF[character] for character in name)

    def byte_lengths(self) -> list[int]:
        """UTF-8 bytes that each id stands for; none for special tokens and for ids without a token."""
        lengths = []
        for token in range(self.vocab_size):
            if token in self._special_ids or self._inner.id_to_token(token) is None:
                lengths.append(0)
                continue
            raw = self.token_bytes(token)
            lengths.append(len(self.decode([token]).encode("utf-8") if raw is None else raw))
        return lengths

    def fingerprint(self) -> str:
        """SHA-256 (hex) of vocabulary, merges, rules and special ids; the same before `save` and after `load`."""
        canonical = json.dumps([json.loads(self._inner.to_str()), self.specials], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _known(self, token: int) -> int:
        token = int(token)
        if not 0 <= token < self.vocab_size or self._inner.id_to_token(token) is None:
            raise UserError(f"token id {token} is outside the vocabulary of {self.vocab_size} tokens")
        return token

    def _piece(self, token: int) -> str:
        if token in self._special_ids:
            return str(self._inner.id_to_token(token))
        text = self._inner.decode([token], skip_special_tokens=False)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start + 1}, which "
            "stands for no character; remove it or replace it by U+FFFD"
        ) from error
    return text


def _claim_specials(inner: tokenizers.Tokenizer, wanted: Mapping[str, str | int], path: Path) -> dict[str, str]:
    """Makes the four special tokens special in `inner`, appending those it lacks; returns role -> name."""
    for role in wanted:
        if role not in SPECIAL_TOKENS:
            raise UserError(f"unknown special token {role!r}; the roles are {', '.join(SPECIAL_TOKENS)}")
    names: dict[str, str] = {}
    for role, default in SPECIAL_TOKENS.items():
        name = wanted.get(role, default)
        if isinstance(name, int):
            token = inner.id_to_token(name) if 0 <= name < 2**32 else None
            if token is None:
                raise UserError(f"{path} has no token with id {name}, named as {role}")
            name = token
        if name in names.values():
            raise UserError(f"{name!r} cannot be two special tokens at once; leave {role} out to have one appended")
        names[role] = name
    added = {token.content for token in inner.get_added_tokens_decoder().values()}
    for role, name in names.items():
        if inner.token_to_id(name) is not None and name not in added:
            raise UserError(f"{name!r} is an ordinary token of {path} and cannot serve as {role}; name a special one")
    inner.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names.values()])
    inner.encode_special_tokens = True
    for role, name in names.items():
        if inner.token_to_id(name) in inner.encode(name, add_special_tokens=False).ids:
            raise UserError(f"text can produce {name!r} in {path}, so it cannot serve as {role}; name another token")
    return names
