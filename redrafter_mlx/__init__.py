"""Faster language models on Apple silicon: recurrent drafting (ReDrafter) on MLX.

>>> from redrafter_mlx import generate, load
>>> print(generate(load("smollm2-135m"), "Once upon a time").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
    from redrafter_mlx.conversation import Conversation
    from redrafter_mlx.errors import (
        CheckpointError,
        ConfigError,
        PromptError,
        ReDrafterError,
        ShapeError,
    )
    from redrafter_mlx.generation import Answer, Chunk, chat_prompt, generate, stream_generate
    from redrafter_mlx.loading.model import LoadedModel, load

__version__ = "0.1.0"

# Imported on first use: the command line must answer --help before MLX is loaded.
_MODULE_OF = {
    "Answer": "redrafter_mlx.generation",
    "BeamShape": "redrafter_mlx.config",
    "CheckpointError": "redrafter_mlx.errors",
    "Chunk": "redrafter_mlx.generation",
    "ConfigError": "redrafter_mlx.errors",
    "Conversation": "redrafter_mlx.conversation",
    "GenerationConfig": "redrafter_mlx.config",
    "LoadedModel": "redrafter_mlx.loading.model",
    "PromptError": "redrafter_mlx.errors",
    "ReDrafterError": "redrafter_mlx.errors",
    "SamplingConfig": "redrafter_mlx.config",
    "ShapeError": "redrafter_mlx.errors",
    "chat_prompt": "redrafter_mlx.generation",
    "generate": "redrafter_mlx.generation",
    "load": "redrafter_mlx.loading.model",
    "stream_generate": "redrafter_mlx.generation",
}

__all__ = [
    "Answer",
    "BeamShape",
    "CheckpointError",
    "Chunk",
    "ConfigError",
    "Conversation",
    "GenerationConfig",
    "LoadedModel",
    "PromptError",
    "ReDrafterError",
    "SamplingConfig",
    "ShapeError",
    "chat_prompt",
    "generate",
    "load",
    "stream_generate",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """Name what can be imported."""
    return sorted(__all__)
