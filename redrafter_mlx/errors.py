"""The exceptions that a user of the package may catch.

ReDrafterError
├── ConfigError       a setting is out of range, or does not go with another
├── CheckpointError   a file of weights, a configuration or a folder is unusable
├── ShapeError        two arrays, or a drafter and a target, do not fit each other
└── PromptError       a prompt or a conversation cannot be answered

Each message is one line: what is wrong, with the value in it, and what to do.
"""


class ReDrafterError(Exception):
    """Base of every error that a user can cause."""


class ConfigError(ReDrafterError):
    """A setting is out of range, or does not go with another one."""


class CheckpointError(ReDrafterError):
    """A file of weights, a configuration or a model folder cannot be used."""


class ShapeError(ReDrafterError):
    """Two arrays, or a drafter and its target, do not fit each other."""


class PromptError(ReDrafterError):
    """A prompt or a conversation cannot be answered as it is."""
