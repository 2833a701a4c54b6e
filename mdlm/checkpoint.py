"""A model as a folder: `config.json`, `model.safetensors`, `tokenizer.json`, `training.json`, `checksums.json`.

Nothing is pickled, no code in a folder is run, and a folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mdlm.config import ModelConfig
from mdlm.errors import UserError
from mdlm.provenance import sha256_of
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer

MODEL_TYPE = "mdlm"
FORMAT_VERSION = 1
CHECKSUMS = "checksums.json"
_PREFIX = "model."
"""On disk tensors bear the names of the Qwen3 family: everything but the head lives under `model.`."""


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes `folder`'s place when the block ends without an error, and vanishes otherwise."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            if path.is_file() or path.is_dir():
                _fsync(path)
        replaced = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        if folder.exists():
            os.replace(folder, replaced)
        os.replace(temporary, folder)
        _fsync(folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file. Raises `OSError` with the file's name where the system refuses, a full disk included.

    The library reports those as an error of its own, with the system's number only in its text.
    """
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if not found:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def save_checkpoint(
    folder: str | Path,
    model: Transformer,
    tokenizer: Tokenizer,
    training: dict[str, Any] | None = None,
    extra: Callable[[Path], None] | None = None,
) -> None:
    """Writes a checkpoint folder, whole or not at all.

    Args:
        training: what made the weights (resolved config, commit, versions, seed, data); `tokens_seen`, the rule for
            end tokens and the response's columns are read from here into `config.json`.
        extra: writes further files into the folder before it takes its place.
    """
    training = training or {}
    tensors = {disk_name(name): tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    header = {
        "model_type": MODEL_TYPE,
        "format_version": FORMAT_VERSION,
        "model": model.config.to_dict(),
        "supervised_end": training.get("supervised_end"),
        "tokens_seen": training.get("tokens_seen"),
        "response_length": training.get("response_length"),
        "special_tokens": tokenizer.specials,
        "tokenizer_sha256": tokenizer.fingerprint(),
    }
    with whole_folder(Path(folder)) as temporary:
        write_tensors(temporary / "model.safetensors", tensors)
        (temporary / "config.json").write_text(json.dumps(header, indent=2) + "\n")
        (temporary / "training.json").write_text(json.dumps(training, indent=2) + "\n")
        tokenizer.save(temporary / "tokenizer.json")
        if extra:
            extra(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        sums = {path.relative_to(temporary).as_posix(): sha256_of(path) for path in files}
        (temporary / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n")


def verify_checkpoint(folder: str | Path) -> None:
    """Reads every file of a checkpoint and compares it with `checksums.json`, which was written last.

    Raises `UserError` that names the first file that is missing or differs in as much as a bit.
    """
    path = Path(folder) / CHECKSUMS
    try:
        sums = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); take another checkpoint") from error
    for name, expected in sums.items():
        file = path.parent / name
        if not file.is_file():
            raise UserError(f"{file} is missing; take another checkpoint")
        if sha256_of(file) != expected:
            raise UserError(f"{file} is not as it was written (its SHA-256 differs); take another checkpoint")


def checkpoints_in(run: str | Path) -> list[Path]:
    """The checkpoint folders of a training run, oldest first."""
    return sorted(path for path in Path(run).glob("step-*") if (path / "config.json").is_file())


def resolve_checkpoint(path: str | Path) -> Path:
    """A checkpoint folder, given itself or a training run's folder, whose last checkpoint is then taken."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such folder; give a checkpoint or a run's folder")
    if (path / "config.json").is_file():
        return path
    if not (found := checkpoints_in(path)):
        raise UserError(f"{path} holds neither a checkpoint (config.json) nor a run's step-* folders")
    return found[-1]


def read_config(folder: str | Path, model_type: str) -> dict[str, Any]:
    """A folder's `config.json`, checked to be of that type and of the version this program reads."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a checkpoint: it has no config.json; give a folder that training has written")
    try:
        header = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); the checkpoint is damaged, take another one") from error
    if isinstance(header, dict) and header.get("model_type") == "qwen3":
        raise UserError(f"{folder} is a Qwen3 folder; convert it: python -m mdlm.export --from qwen3 {folder} OUT")
    if not isinstance(header, dict) or header.get("model_type") != model_type:
        raise UserError(f"{path}: model_type is not {model_type!r}; this folder holds another kind of model")
    if header.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{path}: format_version is {header.get('format_version')!r}, this program reads {FORMAT_VERSION}; "
            "use the release that wrote it"
        )
    return header


def read_header(folder: str | Path) -> dict[str, Any]:
    """A model's `config.json`, checked for type and version; its `model` entry as a `ModelConfig`."""
    path, header = Path(folder) / "config.json", read_config(folder, MODEL_TYPE)
    specials = header.get("special_tokens")
    if specials is not None and not (
        isinstance(specials, dict) and all(isinstance(name, str) for name in specials.values())
    ):
        raise UserError(f"{path}: the entry 'special_tokens' is damaged; take another checkpoint")
    if not isinstance(header.get("model"), dict):
        raise UserError(f"{path}: the entry 'model' is missing; the checkpoint is damaged, take another one")
    header["model"] = ModelConfig.from_dict(header["model"], str(path))
    return header


def load_checkpoint(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> tuple[Transformer, Tokenizer]:
    """Reads a checkpoint folder: the model in evaluation mode and its tokenizer.

    Raises:
        UserError: a file is missing or truncated, a tensor is missing, unexpected or of another shape, the version
            is another one, or the tokenizer is not the one the model was trained with.
    """
    folder = Path(folder)
    header = read_header(folder)
    with torch.device("meta"):
        model = Transformer(header["model"])
    expected = {disk_name(name): tensor.shape for name, tensor in model.state_dict().items()}
    tensors = read_tensors(folder / "model.safetensors", expected)
    model.load_state_dict({name: tensors[disk_name(name)] for name in model.state_dict()}, assign=True)
    tokenizer = load_tokenizer(folder)
    for role in ("mask", "end", "pad", "begin"):
        ours, theirs = getattr(model.config, f"{role}_token_id"), getattr(tokenizer, f"{role}_id")
        if ours != theirs:
            raise UserError(f"{folder}: config.json says {role} is token {ours}, tokenizer.json {theirs}; restore them")
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False), tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder; a `UserError` if it is not the one the model was trained with."""
    header = read_header(folder)
    tokenizer = Tokenizer.load(Path(folder) / "tokenizer.json", header.get("special_tokens"))
    if tokenizer.fingerprint() != header.get("tokenizer_sha256"):
        raise UserError(f"{folder}/tokenizer.json is not the tokenizer this model was trained with; restore that file")
    return tokenizer


def read_tensors(path: Path, expected: dict[str, torch.Size]) -> dict[str, torch.Tensor]:
    """A safetensors file's tensors; `UserError` where it is damaged or does not hold just the names and shapes."""
    if not path.is_file():
        raise UserError(f"{path} is missing; the checkpoint is incomplete, take another one")
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); it is truncated or damaged, take another one") from error
    if missing := sorted(expected.keys() - found.keys()):
        raise UserError(f"{path}: tensor {missing[0]} is missing ({len(missing)} in all)")
    if unexpected := sorted(found.keys() - expected.keys()):
        raise UserError(f"{path}: tensor {unexpected[0]} is unexpected ({len(unexpected)} in all)")
    for name, shape in expected.items():
        if found[name].shape != shape:
            shapes = f"{tuple(found[name].shape)}, config.json asks for {tuple(shape)}"
            raise UserError(f"{path}: tensor {name} has shape {shapes}")
    return found


def disk_name(name: str) -> str:
    """The name on disk of a tensor of `Transformer.state_dict`."""
    return name if name.startswith("lm_head.") else _PREFIX + name
