"""The shape of a model: what it must and must not be."""

from __future__ import annotations

import pytest

from mdlm import ModelConfig, UserError
from mdlm.config import OBJECTIVES


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objective_and_vocabulary_are_enough(objective):
    config = ModelConfig(objective, vocab_size=100)
    specials = (config.mask_token_id, config.end_token_id, config.pad_token_id, config.begin_token_id)
    assert specials == (96, 97, 98, 99)


def test_a_config_survives_as_plain_values():
    config = ModelConfig("block_diffusion", 100, dim=32, block_length=7, causal_prompt=True, mask_token_id=3)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert config.replace(block_length=5).replace(block_length=7) == config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": "gpt"}, "autoregressive, masked_diffusion, block_diffusion"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"layers": 0}, "layers"),
        ({"dim": 1.5}, "dim"),
        ({"block_length": -1}, "block_length"),
        ({"heads": 4, "kv_heads": 3}, r"heads \(4\).*kv_heads \(3\)"),
        ({"head_dim": 7}, "head_dim"),
        ({"mask_token_id": 100}, "mask_token_id"),
        ({"pad_token_id": -2}, "pad_token_id"),
        ({"end_token_id": 96}, "four different"),
        ({"vocab_size": 3}, "vocabulary of 3"),
    ],
)
def test_an_unusable_shape_is_refused_by_name(changes, named):
    with pytest.raises(UserError, match=named) as refused:
        ModelConfig(**{"objective": "autoregressive", "vocab_size": 100, **changes})
    assert "\n" not in str(refused.value)


def test_an_unknown_or_missing_field_is_named_with_its_source():
    values = ModelConfig("autoregressive", vocab_size=100).to_dict()
    with pytest.raises(UserError, match=r"there: .*'depth'"):
        ModelConfig.from_dict({**values, "depth": 3}, "there")
    del values["vocab_size"]
    with pytest.raises(UserError, match=r"there: .*vocab_size"):
        ModelConfig.from_dict(values, "there")


@pytest.mark.parametrize("field", ["dim", "rope_theta", "qk_norm", "pad_token_id"])
def test_no_missing_field_is_made_up(field):
    values = ModelConfig("autoregressive", vocab_size=100).to_dict()
    del values[field]
    with pytest.raises(UserError, match=field):
        ModelConfig.from_dict(values)
