"""Names as people type them."""

from __future__ import annotations

import re


def letters(name: str) -> str:
    """Return a name in lower case, without what may stand between its words."""
    return re.sub(r"[\s_-]", "", name).casefold()
