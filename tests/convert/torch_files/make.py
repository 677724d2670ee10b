"""Write the .pt files beside this script: python tests/convert/torch_files/make.py.

They were written by PyTorch 2.13.0. The tests compute the values anew, without PyTorch.
"""

from collections import OrderedDict
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
FLOATS = {"float64": torch.float64, "float32": torch.float32}
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
INTEGERS = {
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    "int8": torch.int8, "uint8": torch.uint8,
}  # fmt: skip


def every_dtype() -> dict[str, torch.Tensor]:
    """Return one tensor of each dtype; the halves take every 97th bit pattern there is."""
    patterns = torch.arange(0, 65536, 97, dtype=torch.int32).to(torch.int16)
    counted = torch.arange(-60, 60).reshape(2, 3, 20)
    tensors = {name: patterns.clone().view(dtype) for name, dtype in HALVES.items()}
    tensors |= {name: counted.to(dtype) / 7 for name, dtype in FLOATS.items()}
    tensors |= {name: counted.to(dtype) for name, dtype in INTEGERS.items()}
    tensors["bool"] = counted % 3 == 0
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(0, 4)
    return tensors


def every_view() -> dict[str, torch.Tensor]:
    """Return tensors that share two storages."""
    whole = torch.arange(120, dtype=torch.float32).reshape(10, 12)
    half = torch.arange(60).to(torch.bfloat16).reshape(3, 4, 5)
    return {
        "whole": whole,
        "transposed": whole.t(),
        "rows": whole[3:7],
        "block": whole[2:5, 1:9:3],
        "column": whole[:, 4],
        "repeated": whole[1, 2].expand(6, 5),
        "row": whole[9].expand(1, 12),
        "half": half,
        "permuted": half.permute(2, 0, 1)[1:4],
        "nothing": whole[10:],
    }


def trained() -> dict[str, object]:
    """Return what a trainer saves: a module's state_dict and other things beside it."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) + 10 * index)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"epoch": 3, "loss": 0.5, "note": "text", "best": None, "sizes": torch.Size([2, 3])}
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) + 10 * index)
    return {"optimizer": optimizer.state_dict(), "model": module.state_dict(), **state}


def small() -> dict[str, torch.Tensor]:
    """Return parameters and a tied pair."""
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    return OrderedDict(embed=weight, head=weight, bias=torch.nn.Parameter(torch.ones(2)))


def drafter(names: dict[str, str]) -> torch.nn.Module:
    """Return a small drafter of numbers that a test can compute, its modules renamed."""
    blocks = [torch.nn.ModuleDict({"linear": torch.nn.Linear(8, 8)}) for _ in range(2)]
    modules = {
        "lm_head": torch.nn.ModuleList([*blocks, torch.nn.Linear(8, 20, bias=False)]),
        "input_proj": torch.nn.Linear(16, 8),
        "rnn_u": torch.nn.Linear(8, 8),
        "rnn_w": torch.nn.Linear(8, 8, bias=False),
    }
    whole = torch.nn.ModuleDict({names.get(name, name): part for name, part in modules.items()})
    with torch.no_grad():
        for index, parameter in enumerate(whole.parameters()):
            counted = torch.arange(parameter.numel()).reshape(parameter.shape)
            parameter.copy_((37 * counted + 11 * index) % 101 / 64 - 0.75)
    return whole


def drafters() -> dict[str, object]:
    """Return a drafter as each program saves it."""
    apple = drafter({}).state_dict()
    plural = drafter({"lm_head": "lm_heads", "input_proj": "input_projs"}).half().state_dict()
    sequence = drafter({"lm_head": "0"}).bfloat16().state_dict()
    base = {"lm_head.weight": torch.ones(20, 8), "model.norm.weight": torch.ones(8)}
    whole = base | {f"drafter.{name}": tensor for name, tensor in apple.items()}
    return {
        "drafter_apple": apple,
        "drafter_plural": {"state_dict": plural, "step": 100},
        "drafter_sequence": sequence,
        "drafter_modelopt": whole,
    }


def main() -> None:
    """Write every file."""
    torch.manual_seed(0)
    torch.save(every_dtype(), FOLDER / "dtypes.pt")
    torch.save(every_view(), FOLDER / "views.pt")
    torch.save(trained(), FOLDER / "trained.pt")
    torch.save(small(), FOLDER / "small.pt")
    torch.save({"net": {"a": small(), "b": torch.ones(1)}}, FOLDER / "nested.pt")
    torch.save(small(), FOLDER / "protocol4.pt", pickle_protocol=4)
    torch.save(small(), FOLDER / "before_1_6.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 2), FOLDER / "module.pt")
    for name, saved in drafters().items():
        torch.save(saved, FOLDER / f"{name}.pt")


if __name__ == "__main__":
    main()
