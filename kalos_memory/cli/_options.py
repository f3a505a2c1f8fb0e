"""Options that several verbs share, so that each is spelled and explained once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Directory of the sidecar and its store. Default: $KALOS_DATA_DIR, else $XDG_DATA_HOME/kalos, else "
        "~/.local/share/kalos.",
        show_default=False,
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout instead of text.")]
MemoryName = Annotated[str, typer.Option("--memory-name", "-m", help="Name of the memory (its collection).")]
Namespace = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        help="Namespace, a hard wall inside the memory; repeat it for one segment each. Default: the root.",
        show_default=False,
    ),
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help='Metadata filter as JSON, for example \'{"source": {"$contains": "docs/"}}\'.',
        show_default=False,
    ),
]


def namespace_of(segments: list[str] | None) -> tuple[str, ...]:
    """The tuple that a repeated --namespace means."""
    return tuple(segments or ())


def filter_of(text: str | None) -> dict[str, Any] | None:
    """The filter that --filter means. Raises typer.BadParameter with words when it is not a JSON object."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(
            f"--filter is not JSON ({error}); expected an object such as '{{\"key\": 1}}'"
        ) from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"--filter must be a JSON object such as '{{\"key\": 1}}', not {type(value).__name__}")
    return value
