"""The version of the installed package."""

from __future__ import annotations


def version() -> str:
    """As the package's metadata has it; "unknown" in a checkout that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("kalos-memory")
    except metadata.PackageNotFoundError:
        return "unknown"
