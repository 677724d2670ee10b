"""From a name to a folder, and from a folder to modules."""
