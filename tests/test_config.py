"""Settings refuse what they cannot mean, in one line with the value."""

import numpy as np
import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig, Quantization, SamplingConfig
from redrafter_mlx.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (GenerationConfig, {"max_tokens": 0}, "max_tokens is 0"),
        (GenerationConfig, {"max_tokens": 2.5}, "max_tokens is 2.5"),
        (GenerationConfig, {"max_tokens": "5"}, "max_tokens is '5'"),
        (GenerationConfig, {"max_tokens": True}, "max_tokens is True"),
        (GenerationConfig, {"stop": "END"}, "stop is the text 'END'"),
        (GenerationConfig, {"stop": ("a", "")}, "stop string is empty"),
        (GenerationConfig, {"sampling": {"temperature": 1.0}}, "sampling is"),
        (GenerationConfig, {"beam": (2, 4)}, r"beam is \(2, 4\)"),
        (SamplingConfig, {"temperature": "warm"}, "temperature is 'warm'"),
        (SamplingConfig, {"temperature": None}, "temperature is None"),
        (SamplingConfig, {"seed": 1.5}, "seed is 1.5"),
        (SamplingConfig, {"top_k": 2.0}, "top_k is 2.0"),
        (BeamShape, {"beam_width": 0}, "beam_width is 0"),
        (BeamShape, {"beam_length": 65}, "beam_length is 65"),
        (Quantization, {"bits": 7}, "bits is 7"),
        (Quantization, {"bits": 4, "group_size": 48}, "group_size is 48"),
    ],
)
def test_a_senseless_setting_is_refused_with_its_value(kind, settings, named):
    with pytest.raises(ConfigError, match=named) as caught:
        kind(**settings)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_and_whole_temperatures_are_fine():
    sampling = SamplingConfig(temperature=1, top_k=np.int64(5), top_p=np.float32(0.5))
    config = GenerationConfig(max_tokens=np.int32(3), stop=["a"], sampling=sampling)
    assert config.sampling.top_k == 5
