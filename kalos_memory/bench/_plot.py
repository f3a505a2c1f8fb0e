"""A comparison with other stores as a picture: median latency by size, one line for each store."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

from kalos_memory._errors import InvalidRequest


def check_plot(path: Path) -> None:
    """Raises InvalidRequest, before anything is measured, where no picture could be drawn at the end."""
    if path.suffix not in (".svg", ".png"):
        raise InvalidRequest(f"--plot {path}: expected a name that ends in .svg or .png")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"--plot {path}: there is no directory {path.absolute().parent}")
    if util.find_spec("matplotlib") is None:
        raise InvalidRequest("--plot needs matplotlib: pip install 'kalos-memory[peers]'")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws what run_peers() returned: p50 of the closed loop, both axes logarithmic, recall beside the name."""
    from matplotlib.figure import Figure

    families = sorted({size["family"] for size in result["sizes"]})
    figure = Figure(figsize=(6.5 * len(families), 5), layout="constrained")
    for place, family in enumerate(families):
        axes = figure.add_subplot(1, len(families), place + 1)
        lines: dict[str, list[tuple[int, float, float]]] = {}
        for size in result["sizes"]:
            if size["family"] == family:
                for store in size["stores"]:
                    point = (size["rows"], store["closed"]["p50_us"], store["recall"])
                    lines.setdefault(store["name"], []).append(point)
        for name, points in lines.items():
            rows, latencies, recalls = zip(*points, strict=True)
            label = f"{name}, recall {min(recalls):.3f}"
            axes.plot(rows, latencies, marker="o", linewidth=3 if name == "Kalos" else 1, label=label)
        axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="p50, us", title=family)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path)
