"""`harvester profile`: measure step times and KV copies of the running engine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harvester.cli.invocation import Invocation, command

app = typer.Typer()


@command(app)
def profile(
    here: Invocation,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=1.0, max=600.0, help="How long to measure, in seconds.")] = 40.0,
) -> None:
    """Measure the running engine: step times and KV copies.

    The scheduler plans with this profile and goes on learning from later steps. The profile is kept in the state folder, by model,
    hardware and engine arguments. A server without one makes a short one by itself. Chat has priority meanwhile.

    \b
    Example:
        harvester profile
    """
    with here.reach()[0] as client:
        found = client.profile(seconds)
    if here.json:
        here.print_json(found)
        return
    print(*_lines(found), sep="\n")


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['steps']} steps of {found['probes']} probes in {found['seconds']:.0f} s",
        f"actual over predicted step time: p50 {found['ratio_p50']:.2f}, p99 {found['ratio_p99']:.2f}",
    ]
    copies = found.get("kv_copy")
    if copies:
        size = copies["block_bytes"] / 1024
        lines.append(f"KV block of {size:.0f} KiB: {copies['store_s'] * 1e6:.0f} us to host memory, {copies['load_s'] * 1e6:.0f} us back")
    return [*lines, f"written to {found['path']}"]
