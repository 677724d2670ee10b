"""Writes target_logits.npz: the logits of Hugging Face transformers for each tiny model.

pip install torch==2.13.0 transformers==5.24.0
python -m tests.golden.target_logits
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.family_models import CONFIGS, TOKENS, weights_of


def logits_of(name: str, folder: Path) -> Any:
    """Return (tokens, vocab) float32, the model loaded from a folder as a user would."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    tensors = {key: torch.from_numpy(value) for key, value in weights_of(name).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        return model.eval()(torch.tensor([TOKENS])).logits[0].numpy()


def main() -> None:
    """Write the file beside this script."""
    logits = {}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            logits[name] = logits_of(name, Path(folder))
    np.savez_compressed(Path(__file__).with_name("target_logits.npz"), **logits)


if __name__ == "__main__":
    main()
