"""A public folder of the Qwen3 family, read into our trunk.

Nothing here imports transformers, reads a pickle or runs code that lies in a folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mdlm.checkpoint import disk_name
from mdlm.config import ModelConfig, Objective
from mdlm.errors import UserError
from mdlm.tokenizer import SPECIAL_TOKENS, Tokenizer
from mdlm.transformer import Transformer

MODEL_TYPE, ARCHITECTURE = "qwen3", "Qwen3ForCausalLM"
SIZES = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "max_length": "max_position_embeddings",
}
"""Fields of `ModelConfig` and their names in a Qwen3 `config.json`."""
ROLES = {"end": "eos", "begin": "bos", "pad": "pad", "mask": "mask"}
"""Our special tokens and transformers' word for each; where two roles name one token, the earlier role has it."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def load_qwen3(
    folder: str | Path,
    objective: Objective = "autoregressive",
    *,
    specials: Mapping[str, str | int] | None = None,
    max_length: int | None = None,
    block_length: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Transformer, Tokenizer]:
    """Reads a folder of the Qwen3 family, public or exported from here: the model in evaluation mode, its tokenizer.

    The four special tokens are those of `specials`, by name or id; else what `config.json` (`eos_token_id`, ...) or
    `tokenizer_config.json` names. A role without a token of its own (`mask` in every public folder, and `begin` or
    `pad` where they name the end token) is appended to the tokenizer. It takes the next embedding row that no token
    uses, with the values it has (public folders have such rows: 151,936 for 151,669 tokens), or where there is none a
    new row, the mean of all others: its logit is then the mean of the others' and never above their largest.
    Rows behind the last token are left out, for no text can hold them; every other logit is the file's.

    Args:
        objective: how the trunk attends and what it predicts. Diffusion from these weights has to be learned first:
            they predict token i + 1 at position i, a diffusion objective asks for token i there.
        max_length: longest row in positions, at most the file's `max_position_embeddings`, which is the default.

    Raises:
        UserError: a file is missing or damaged; a tensor is missing, unexpected or of another shape; the folder asks
            for something that the trunk does not have (another architecture, scaled rotary positions, a sliding
            window, biases, quantised weights); a special token cannot be one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that holds a Qwen3 model")
    path = folder / "config.json"
    values = _read_json(path)
    _refuse_unsupported(values, path)
    sizes = {ours: values.get(theirs) for ours, theirs in SIZES.items()}
    for ours, value in sizes.items():
        if type(value) is not int or value < 1:
            raise UserError(f"{path}: {SIZES[ours]} is {value!r}; it must be a whole number of at least 1")
    file_rows, longest = int(values["vocab_size"]), int(values["max_position_embeddings"])
    if max_length is not None and max_length > longest:
        raise UserError(f"max_length {max_length} is above the {longest} (max_position_embeddings) of {path}")
    tokenizer = _read_tokenizer(folder, values, specials or {}, file_rows)
    options: dict[str, Any] = {
        **sizes,
        "vocab_size": tokenizer.vocab_size,
        "max_length": longest if max_length is None else max_length,
        "rope_theta": _rope_theta(values, path),
        "norm_eps": values.get("rms_norm_eps", 1e-6),
        "tie_embeddings": values.get("tie_word_embeddings", False),
        "block_length": block_length,
        **{f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in SPECIAL_TOKENS},
    }
    try:
        config = ModelConfig(objective, **options)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(_read_weights(folder, model, file_rows, dtype), assign=True)
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False), tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path} is missing; the folder is incomplete, fetch it again")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); it is damaged, fetch it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; it is damaged, fetch it again")
    return content


def _refuse_unsupported(values: dict[str, Any], path: Path) -> None:
    """A `UserError` for the first thing a config asks for that the trunk does not have."""
    if values.get("model_type") != MODEL_TYPE:
        raise UserError(f"{path}: model_type is {values.get('model_type')!r}; only {MODEL_TYPE!r} can be read")
    without = {
        "auto_map": "code of its own, which is never run; take a folder without it",
        "quantization_config": "quantised weights; take the folder of the full ones",
        "attention_bias": "biases in attention, which the trunk does not have",
        "use_sliding_window": "a sliding window, which the trunk does not have",
    }
    for key, what in without.items():
        if values.get(key):
            raise UserError(f"{path}: {key} asks for {what}")
    if (activation := values.get("hidden_act", "silu")) != "silu":
        raise UserError(f"{path}: hidden_act is {activation!r}; the trunk has 'silu' alone")
    if other := sorted(set(values.get("layer_types") or ()) - {"full_attention"}):
        raise UserError(f"{path}: layer_types holds {other[0]!r}; the trunk has 'full_attention' alone")


def _rope_theta(values: dict[str, Any], path: Path) -> Any:
    """The base of plain rotary positions, wherever a version of transformers writes it; any scaling is refused."""
    found = [values["rope_theta"]] if "rope_theta" in values else []
    for key in ("rope_parameters", "rope_scaling"):
        rope = values.get(key) or {}
        if not isinstance(rope, dict):
            raise UserError(f"{path}: {key} is {rope!r}; it must be an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        further = sorted(set(rope) - {"rope_type", "type", "rope_theta"})
        if kind != "default" or further:
            asked = further[0] if kind == "default" else kind
            raise UserError(f"{path}: {key} asks for {asked!r}; the trunk has plain rotary positions ('default') alone")
        found += [rope["rope_theta"]] if "rope_theta" in rope else []
    if not found:
        raise UserError(f"{path}: rope_theta is missing; the file is incomplete, fetch it again")
    if any(theta != found[0] for theta in found):
        raise UserError(f"{path}: rope_theta is {found[0]!r} in one place and {found[-1]!r} in another; mend the file")
    return found[0]


def _read_tokenizer(folder: Path, values: dict[str, Any], given: Mapping[str, str | int], rows: int) -> Tokenizer:
    """The folder's tokenizer, with a token of its own for each role; see `load_qwen3` for which."""
    path, about = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content, named = _read_json(path), _read_json(about) if about.is_file() else {}
    ids = _token_ids(content, path)
    names: dict[Any, str] = {number: name for name, number in ids.items()}
    if max(names) >= rows:
        raise UserError(
            f"{path} numbers its tokens up to {max(names)}, the model has {rows} rows (vocab_size in config.json); "
            "the two do not belong together"
        )
    chosen: dict[str, str | int] = {role: names.get(token, token) for role, token in given.items()}
    for role, theirs in ROLES.items():
        number, name = values.get(f"{theirs}_token_id"), named.get(f"{theirs}_token")
        number = number[0] if isinstance(number, list) and number else number  # the first of several end tokens
        if number is not None and number not in names:
            raise UserError(f"{folder / 'config.json'}: {theirs}_token_id is {number!r}, no token of {path.name}")
        name = name.get("content") if isinstance(name, dict) else name
        free = [token for token in (names.get(number), name) if token in ids and token not in chosen.values()]
        if role not in chosen and free:
            chosen[role] = free[0]
    # What puts tokens around a text is no part of our tokenizer; without it, an exported one is what it was.
    tokenizer = Tokenizer.from_content(content | {"post_processor": None}, chosen, path)
    for role in SPECIAL_TOKENS:
        if tokenizer.specials[role] not in ids and getattr(tokenizer, f"{role}_id") in names:
            raise UserError(f"{path} has gaps in its numbering: a new {role} token would take a used row; name another")
    return tokenizer


def _token_ids(content: dict[str, Any], path: Path) -> dict[str, int]:
    """Every token of a `tokenizer.json` and its id."""
    try:
        ids = dict(content["model"]["vocab"]) | {token["content"]: token["id"] for token in content["added_tokens"]}
    except (KeyError, TypeError, ValueError):
        ids = {}
    if not ids or not all(type(number) is int for number in ids.values()):
        raise UserError(f"{path} holds no byte-level BPE vocabulary as Qwen3 has it; take the model's own file")
    return ids


def _read_weights(folder: Path, model: Transformer, file_rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state of `model`, shard by shard; the vocabulary's rows are cut or appended to those of the tokenizer."""
    config = model.config
    names = {disk_name(name): name for name in model.state_dict()}
    shapes = {disk_name(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes |= {name: (file_rows, config.dim) for name in _TABLES if name in shapes}
    optional = set(_TABLES[1:]) if config.tie_embeddings else set()  # some tied folders hold the head a second time
    tensors: dict[str, Tensor] = {}
    for path in _shards(folder):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 — not a mapping
                if name not in shapes.keys() | optional or name in tensors:
                    raise UserError(f"{path}: tensor {name} is unexpected; the trunk has no place for it")
                shape, expected = tuple(file.get_slice(name).get_shape()), shapes.get(name, (file_rows, config.dim))
                if shape != expected:
                    raise UserError(f"{path}: tensor {name} has shape {shape}, config.json asks for {expected}")
                if (kind := file.get_slice(name).get_dtype()) not in ("F32", "BF16", "F16"):
                    raise UserError(f"{path}: tensor {name} is {kind}; only fp32, bf16 and fp16 are read")
                tensors[name] = file.get_tensor(name).to(dtype)
    if missing := sorted(shapes.keys() - tensors.keys()):
        raise UserError(f"{folder}: tensor {missing[0]} is missing ({len(missing)} in all); fetch the folder again")
    if optional and not torch.equal(tensors.pop(_TABLES[1], tensors[_TABLES[0]]), tensors[_TABLES[0]]):
        raise UserError(f"{folder}: lm_head.weight is not the embedding, but config.json ties them; mend config.json")
    for name in tensors.keys() & set(_TABLES):
        mean_D = tensors[name].mean(0, dtype=torch.float32).to(dtype)
        added = mean_D.expand(max(config.vocab_size - file_rows, 0), -1)
        tensors[name] = torch.cat([tensors[name][: config.vocab_size], added])
    return {names[name]: tensor for name, tensor in tensors.items()}


def _shards(folder: Path) -> list[Path]:
    """The files that hold the weights: `model.safetensors`, or those that its index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        pickled = any(path.suffix in (".bin", ".pt", ".pth") for path in folder.iterdir())
        advice = "pickled weights are never read, convert them to safetensors" if pickled else "fetch the weights"
        raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}; {advice}")
    placed = _read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(shard, str) for shard in placed.values()):
        raise UserError(f"{index}: the entry 'weight_map' is damaged; fetch the file again")
    shards = sorted(set(placed.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise UserError(f"{index} names {shard!r}, which is not a file beside it; shards lie in one folder")
        if not (folder / shard).is_file():
            raise UserError(f"{folder / shard} is missing, but {INDEX} names it; fetch it again")
    return [folder / shard for shard in shards]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); it is truncated or damaged, fetch it again") from error
