"""What huggingface_hub raises, as one line."""

from __future__ import annotations

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading.known import WHEEL_MODELS, short_name

_HUB = "the Hugging Face Hub"


def explain(repository: str, revision: str | None, error: Exception) -> CheckpointError:
    """Return the refusal that says what was asked for, what failed and what to do."""
    name = short_name(repository)
    asked = repository if name == repository else f"{name} ({repository})"
    if revision is not None:
        asked = f"revision {revision!r:.80} of {asked}"
    what, remedy = _reason(error, can_be_folder=asked == repository)
    others = [] if revision else [known for known in WHEEL_MODELS if known != name]
    choice = f", or choose {' or '.join(others)}" if others else ""
    return CheckpointError(f"{asked} {what}; {remedy}{choice}.")


def is_out_of_reach(error: Exception) -> bool:
    """Whether this is no answer about the repository, but none, or one that the server is ill."""
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        return (_status_of(error) or 0) >= 500
    return isinstance(error, OSError | errors.OfflineModeIsEnabled) or _is_transport(error)


def _is_transport(error: Exception) -> bool:
    """Whether the HTTP library, whichever huggingface_hub uses, got no answer."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _reason(error: Exception, *, can_be_folder: bool) -> tuple[str, str]:
    """Return what happened, and what helps."""
    from huggingface_hub import errors

    if isinstance(error.__cause__, errors.HfHubHTTPError):
        error = error.__cause__
    if isinstance(error, errors.GatedRepoError):
        return f"asks for its terms to be accepted on {_HUB}", "accept them on its page and log in"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"is not on {_HUB}", "give a branch, a tag or a whole commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        places = f"is no folder here, and not on {_HUB}" if can_be_folder else f"is not on {_HUB}"
        return f"{places} or private there", "check the name, or log in"
    if isinstance(error, errors.HFValidationError):
        return f"is no name that {_HUB} allows", "give org/name"
    if _has_no_network(error):
        places = "is neither a folder here nor" if can_be_folder else "is not"
        return f"{places} in the local cache, and {_HUB} cannot be reached", "check the network"
    if _status_of(error) == 401:
        return f"is not for you on {_HUB} (the server answered 401)", "log in, or check the token"
    return (
        f"cannot be got from {_HUB} ({_one_line(error):.200})",
        "run again, what is complete is kept",
    )


def _has_no_network(error: Exception) -> bool:
    from huggingface_hub import errors

    is_offline = isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled)
    return is_offline or type(error).__name__ == "ConnectError"


def _one_line(error: Exception) -> str:
    status = _status_of(error)
    if status is not None:
        return f"the server answered {status}"
    return " ".join(str(error).split()) or type(error).__name__


def _status_of(error: Exception) -> int | None:
    """Return the status of the HTTP answer that an error tells of."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
