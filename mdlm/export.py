"""`python -m mdlm.export`: a checkpoint out, as a folder that transformers reads, or a public Qwen3 folder in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from mdlm.checkpoint import (
    disk_name,
    load_checkpoint,
    read_header,
    resolve_checkpoint,
    save_checkpoint,
    whole_folder,
    write_tensors,
)
from mdlm.command import CommandParser
from mdlm.config import ModelConfig
from mdlm.errors import UserError, run_command
from mdlm.provenance import checkout
from mdlm.qwen3 import ARCHITECTURE, MODEL_TYPE, ROLES, SINGLE, SIZES, load_qwen3
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main(argv: list[str]) -> None:
    parser = CommandParser(prog="python -m mdlm.export", description=__doc__)
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--to", choices=[MODEL_TYPE], help="write the checkpoint as a folder of this kind")
    direction.add_argument("--from", dest="kind", choices=[MODEL_TYPE], help="read FOLDER, write a checkpoint")
    parser.add_argument("--checkpoint", metavar="DIR", help="with --to: a checkpoint, or a run's folder")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the weights written (default: fp32)")
    parser.add_argument("--max-length", type=int, help="with --from: longest row in positions (default: the folder's)")
    parser.add_argument("source", nargs="?", metavar="FOLDER", help="with --from: the folder to read")
    parser.add_argument("out", metavar="OUT", help="the folder to write, which must not exist or be empty")
    options = parser.parse_args(argv)
    out, dtype = Path(options.out).absolute(), DTYPES[options.dtype]
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{options.out} exists already; name a new folder, or delete it first")
    if options.to:
        if not options.checkpoint or options.source or options.max_length:
            parser.error("an export takes --checkpoint DIR --to qwen3 OUT")
        folder = resolve_checkpoint(options.checkpoint)
        model, tokenizer = load_checkpoint(folder, dtype=dtype)
        save_qwen3(out, model, tokenizer, read_header(folder).get("response_length"))
    else:
        if not options.source or options.checkpoint:
            parser.error("an import takes --from qwen3 FOLDER OUT")
        model, tokenizer = load_qwen3(options.source, max_length=options.max_length, dtype=dtype)
        commit, changed = checkout()
        origin = {"folder": str(options.source), "kind": MODEL_TYPE}
        save_checkpoint(out, model, tokenizer, {"origin": origin, "commit": commit, "uncommitted_changes": changed})
    print(f"{options.out}: {model.num_parameters:,} parameters in {options.dtype}, {tokenizer.vocab_size:,} tokens")


def save_qwen3(
    folder: str | Path, model: Transformer, tokenizer: Tokenizer, response_length: int | None = None
) -> None:
    """Writes a folder that transformers loads as `Qwen3ForCausalLM` and `AutoTokenizer`, whole or not at all.

    The weights are those of the model, bit for bit. The tokenizer splits the names of special tokens like any other
    text and puts the begin token in front, as every prompt here has it; with `add_special_tokens=False` it gives what
    `Tokenizer.encode` gives. Greedy generation never writes the mask token, whose logit no objective trains.

    Args:
        response_length: what `generate` takes for `max_new_tokens` where its caller names none.

    Raises:
        UserError: Qwen3 cannot express the model.
    """
    config = model.config
    if config.objective != "autoregressive":
        raise UserError(
            f"a {config.objective} model fills masks and sees tokens to the right; {ARCHITECTURE} is causal and "
            "predicts the next token, so only an autoregressive checkpoint can be exported to it"
        )
    if not config.qk_norm:
        raise UserError(f"qk_norm is false; {ARCHITECTURE} always normalises queries and keys and cannot express that")
    tensors = {disk_name(name): tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    files = {
        "config.json": exported_config(config, model.dtype),
        "generation_config.json": _generation_config(config, response_length),
        "tokenizer_config.json": _tokenizer_config(tokenizer, config.max_length),
        "special_tokens_map.json": _special_names(tokenizer),
    }
    with whole_folder(Path(folder).absolute()) as temporary:
        write_tensors(temporary / SINGLE, tensors)
        _write_tokenizer(temporary / "tokenizer.json", tokenizer)
        for name, content in files.items():
            (temporary / name).write_text(json.dumps(content, indent=2) + "\n")


def _write_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Our `tokenizer.json` with the begin token in front of every text, which no other file can ask for."""
    tokenizer.save(path)
    inner, begin = tokenizers.Tokenizer.from_file(str(path)), tokenizer.specials["begin"]
    inner.post_processor = TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", "$B:1"], special_tokens=[(begin, tokenizer.begin_id)]
    )
    inner.save(str(path))


def exported_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        # Version 4 of transformers reads the first two, version 5 the third.
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "bos_token_id": config.begin_token_id,
        "eos_token_id": config.end_token_id,
        "pad_token_id": config.pad_token_id,
        "dtype": str(dtype).removeprefix("torch."),
        "use_cache": True,
    }


def _generation_config(config: ModelConfig, response_length: int | None) -> dict[str, Any]:
    length = {} if response_length is None else {"max_new_tokens": response_length}
    return {
        "bos_token_id": config.begin_token_id,
        "eos_token_id": config.end_token_id,
        "pad_token_id": config.pad_token_id,
        "do_sample": False,
        "suppress_tokens": [config.mask_token_id],
        **length,
    }


def _special_names(tokenizer: Tokenizer) -> dict[str, str]:
    return {f"{theirs}_token": tokenizer.specials[role] for role, theirs in ROLES.items()}


def _tokenizer_config(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",  # the class that takes tokenizer.json as it stands
        **_special_names(tokenizer),
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
        "padding_side": "left",
    }


if __name__ == "__main__":
    raise SystemExit(run_command(main))
