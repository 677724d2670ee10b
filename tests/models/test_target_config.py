"""What a config.json may say, and what is refused by name."""

import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models.target_config import TargetConfig

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}


def test_sizes_left_out_follow_from_the_others():
    config = TargetConfig.from_dict(LLAMA)
    assert config.num_kv_heads == 4
    assert config.head_dim == 16
    assert config.tie_word_embeddings is None


def test_transformers_5_keeps_the_base_in_rope_parameters():
    config = TargetConfig.from_dict(
        LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    )
    assert config.rope.theta == 5e5


def test_a_sliding_window_as_long_as_the_context_does_not_bind():
    settings = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    assert TargetConfig.from_dict(settings).max_positions == 4096
    settings = LLAMA | {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False}
    assert TargetConfig.from_dict(settings).qkv_bias


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gemma2"}, "'gemma2'"),
        ({"model_type": None}, "None"),
        ({"model_type": "mistral", "sliding_window": 1024}, "sliding window of 1024"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding window of 8"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"num_local_experts": 8}, "num_local_experts 8"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "model code"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, named):
    with pytest.raises(CheckpointError, match=named) as caught:
        TargetConfig.from_dict(LLAMA | changes)
    assert "\n" not in str(caught.value)
