"""The picture that `headrace profile show --plot` writes: four panels, points and the curves between them."""

from typing import Any

from headrace.schemas.errors import ConfigError
from headrace.streams.cli.profile_show import SAMPLES, Curves, some_contexts

INCHES = (11, 7)
CONTEXTS = 6  # context lengths whose curves are drawn


def write_picture(curves: Curves, path: str) -> None:
    """Write the picture, in the format of the file's name. Raises ConfigError where that cannot be."""
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ConfigError("--plot needs matplotlib: pip install headrace[profile]") from e
    figure = Figure(figsize=INCHES, layout="constrained")
    panels: Any = figure.subplots(2, 2)
    _prefill(curves, panels[0])
    _decode(curves, panels[1])
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as e:
        raise ConfigError(f"--plot {path}: {e}") from e


def _prefill(curves: Curves, panels: Any) -> None:
    profile, table = curves.profile.prefill, curves.prefill
    if profile is None:
        _label(panels, "prompt, tokens", "no prefill profile")
        return
    low, high = min(profile.isl), max(profile.isl)
    places = [low + (high - low) * i / (SAMPLES - 1) for i in range(SAMPLES)]
    panels[0].plot(profile.isl, [1000 * t for t in profile.ttft_s], "o", color="tab:blue")
    panels[1].plot(profile.isl, profile.throughput_per_gpu, "o", color="tab:blue")
    if table is not None:
        panels[0].plot(places, [1000 * table.ttft_s(x) for x in places], color="tab:blue")
        panels[1].plot(places, [table.throughput_per_gpu(x) for x in places], color="tab:blue")
    panels[0].set_ylabel("TTFT, ms")
    _label(panels, "prompt, tokens", "prefill")


def _decode(curves: Curves, panels: Any) -> None:
    profile, table = curves.profile.decode, curves.decode
    if profile is None:
        _label(panels, "KV use", "no decode profile")
        return
    places = [i / (SAMPLES - 1) for i in range(SAMPLES)]
    for number, context in enumerate(some_contexts(profile, CONTEXTS)):
        mine = [i for i, c in enumerate(profile.context_length) if c == context]
        color = f"C{number}"
        usages = [profile.kv_usage[i] for i in mine]
        panels[0].plot(usages, [1000 * profile.itl_s[i] for i in mine], "o", color=color, label=f"{context:.0f} tokens")
        panels[1].plot(usages, [profile.throughput_per_gpu[i] for i in mine], "o", color=color)
        if table is not None:
            loads = [u * profile.max_kv_tokens / context for u in places]
            panels[0].plot(places, [1000 * table.itl_s(n, context) for n in loads], color=color)
            panels[1].plot(places, [table.throughput_per_gpu(n, context) for n in loads], color=color)
    panels[0].set_ylabel("ITL, ms")
    panels[0].legend(title="context", fontsize="small")
    _label(panels, "KV use", "decode")


def _label(panels: Any, x: str, title: str) -> None:
    for panel in panels:
        panel.set_xlabel(x)
        panel.set_title(title)
        panel.grid(alpha=0.3)
        panel.set_ylim(bottom=0)
    panels[1].set_ylabel("tokens/s/GPU")
