"""A file of a data set on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading.download import quiet_hub
from redrafter_mlx.loading.hub_errors import is_out_of_reach


def fetch_dataset_file(repository: str, name: str) -> Path:
    """Return the file, downloaded on first use and kept in the Hub's own cache.

    Raises:
        CheckpointError: It cannot be got.
    """
    from huggingface_hub import hf_hub_download

    try:
        with quiet_hub():
            return Path(hf_hub_download(repository, name, repo_type="dataset"))
    except Exception as error:  # whatever fails on the way is the user's to know in one line
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if is_out_of_reach(error):
            reason = "the Hugging Face Hub cannot be reached"
        raise CheckpointError(
            f"{name} of the data set {repository} cannot be got ({reason}); give a file of "
            "questions with --questions."
        ) from error
