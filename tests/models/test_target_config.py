"""What a config.json may say, and what is refused by name."""

import time
from typing import Any

import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models import target_config
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.target_config import TargetConfig
from tests.noting import Noting

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
NAN, INFINITY = float("nan"), float("inf")


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
        ({"head_dim": 7}, "head_dim is 7"),
        ({"hidden_size": 3}, "head_dim is 0"),
        ({"rope_scaling": {"rope_type": "linear"}}, "no factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor 0.25"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "high_freq_factor is 4.0"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, named):
    with pytest.raises(CheckpointError, match=named) as caught:
        TargetConfig.from_dict(LLAMA | changes)
    assert "\n" not in str(caught.value)
    if "not supported" in str(caught.value):
        assert "; choose a" in str(caught.value), "and the way out"


NO_SIZE: tuple[Any, ...] = (
    None,
    "64",
    "",
    [64],
    {},
    True,
    64.0,
    -1,
    0,
    NAN,
    INFINITY,
    2**31,
    10**400,
)
NO_COUNT = tuple(value for value in NO_SIZE[1:] if value != 0)
NO_NUMBER: tuple[Any, ...] = (
    None,
    "1.0",
    "",
    [1.0],
    {},
    True,
    -1,
    0,
    0.0,
    NAN,
    INFINITY,
    -INFINITY,
    1e30,
    10**400,
)
NO_FLAG: tuple[Any, ...] = ("false", "", [True], {}, 0, 1, NAN)
NO_TEXT: tuple[Any, ...] = (None, "a\nb", "", ["silu"], {}, True, 0, -1, NAN, 10**400)
NO_OBJECT: tuple[Any, ...] = ("linear", "", ["linear"], [], False, 0, -1, NAN, 10**400)
# Where None is not among the values, null is the same as no such key.
MALFORMED: dict[str, tuple[Any, ...]] = {
    "model_type": NO_TEXT,
    "hidden_act": NO_TEXT,
    "layer_types": ("full_attention", "", {}, True, 5, 0, NAN, [5], [None], [[]], [{}], ["a\nb"]),
    "model_file": ("model.py", "a\nb", ["x"], True, 5, NAN),
    "auto_map": ("model.py", ["x"], True, 5, NAN, {"a\nb": {}}),
    "rope_scaling": NO_OBJECT,
    "rope_parameters": NO_OBJECT,
    "rms_norm_eps": (*NO_NUMBER, 2.0),
    "rope_theta": NO_NUMBER,
    "partial_rotary_factor": NO_NUMBER[1:],
    "num_hidden_layers": (*NO_SIZE, 1025),
    "num_key_value_heads": NO_SIZE[1:],
    "head_dim": NO_SIZE[1:],
    **dict.fromkeys(
        ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"), NO_SIZE
    ),
    "max_position_embeddings": NO_SIZE,
    **dict.fromkeys(
        ("sliding_window", "num_experts", "num_local_experts", "n_routed_experts"), NO_COUNT
    ),
    **dict.fromkeys(
        (
            "attention_bias",
            "mlp_bias",
            "rope_traditional",
            "tie_word_embeddings",
            "use_sliding_window",
        ),
        NO_FLAG,
    ),
}
MALFORMED_ROPE: dict[str, tuple[Any, ...]] = {
    "rope_type": NO_TEXT,
    "type": NO_TEXT,
    "rope_theta": NO_NUMBER,
    "factor": NO_NUMBER,
    "low_freq_factor": NO_NUMBER,
    "high_freq_factor": NO_NUMBER,
    "partial_rotary_factor": NO_NUMBER[1:],
    "original_max_position_embeddings": NO_SIZE,
}


def shown(value: object) -> str:
    """Return the first letters of a value, or of what a list or an object holds."""
    return repr(value).strip("[]{}")[:4]


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        TargetConfig.from_dict(values)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
    return str(caught.value)


@pytest.mark.parametrize("key", MALFORMED)
def test_a_malformed_value_is_refused_with_its_key(key):
    for value in MALFORMED[key]:
        message = refusal(LLAMA | {key: value})
        assert key in message and shown(value) in message, value


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", MALFORMED_ROPE)
def test_a_malformed_value_of_the_rope_is_refused_with_its_key(key, where):
    rope = {name: value for name, value in LLAMA3.items() if name != "rope_type" or key != "type"}
    for value in MALFORMED_ROPE[key]:
        message = refusal(LLAMA | {where: rope | {key: value}})
        assert key in message and shown(value) in message, value


def test_the_two_tables_have_every_key_that_is_read(monkeypatch):
    monkeypatch.setattr(target_config, "_without_nulls", lambda values: values)
    rope = Noting(LLAMA3)
    values = Noting(LLAMA | {"rope_scaling": rope, "tie_word_embeddings": True})
    TargetConfig.from_dict(values)
    assert values.asked == MALFORMED.keys()
    assert rope.asked == MALFORMED_ROPE.keys()


def test_null_is_left_out_where_hugging_face_says_so():
    nullable = [key for key, values in MALFORMED.items() if None not in values]
    assert TargetConfig.from_dict(LLAMA | dict.fromkeys(nullable)) == TargetConfig.from_dict(LLAMA)


def test_whole_numbers_and_zeros_that_mean_none_are_taken():
    config = TargetConfig.from_dict(
        LLAMA
        | {"model_type": "mistral", "sliding_window": 0, "num_experts": 0, "rope_theta": 10**6}
    )
    assert config.rope.theta == 1e6


def test_the_largest_model_that_is_let_through_is_built_at_once():
    """No size of a file that is a few hundred bytes long keeps the program busy."""
    sizes = {
        "hidden_size": 2**20,
        "intermediate_size": 2**22,
        "num_hidden_layers": 1024,
        "num_attention_heads": 2**14,
        "head_dim": 2**14,
        "vocab_size": 2**24,
        "max_position_embeddings": 2**31 - 1,
    }
    config = TargetConfig.from_dict(LLAMA | sizes | {"rope_scaling": LLAMA3})
    start = time.perf_counter()
    assert len(Decoder(config, is_tied=False).model.layers) == 1024
    assert time.perf_counter() - start < 30
    for key, most in sizes.items():
        assert f"{key} is {most + 1}" in refusal(LLAMA | {key: most + 1})
