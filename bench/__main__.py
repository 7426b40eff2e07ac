"""``python -m bench SCENARIO``: run one scenario and write its result."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from pathlib import Path

from bench.harness.options import Options
from bench.harness.plot import draw
from bench.harness.record import Start, is_clean, outcome
from bench.scenarios.catalog import SCENARIOS
from harvester.errors import HarvesterError, UsageError

PACED = [name for name, scenario in SCENARIOS.items() if scenario.paced]


def _parser() -> argparse.ArgumentParser:
    known = "\n".join(f"  {name:<12} {scenario.summary}" for name, scenario in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure harvester beside its peers, on this machine.",
        epilog=f"scenarios:\n{known}\n\nexample:\n  python -m bench jobs --quick --json bench/results/jobs-quick.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="one of those below")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here; without it, it is printed")
    parser.add_argument("--seconds", type=float, metavar="N", help="about how long one timed run of an engine takes")
    parser.add_argument("--model", metavar="PATH", help="model folder; default: the scenario's own")
    parser.add_argument("--quick", action="store_true", help="the short form, for a first look")
    parser.add_argument("--simulated", action="store_true", help="in virtual time, without an engine: for a scenario that has such a form")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything that is drawn (0)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a knob of a co-serving scenario, see bench/README.md"
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=float, metavar="N", help=f"chats a second, of {', '.join(PACED)}; without it, the machine is measured")
    pace.add_argument(
        "--share",
        type=float,
        action="append",
        default=[],
        metavar="S",
        help="of what the engine can do, what chat alone is to be; once for each point of the result (0.25 and 0.5; with --quick 0.25)",
    )
    return parser


def _set(words: list[str]) -> dict[str, float]:
    """Raises `UsageError` for a word that is no name and number."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise UsageError(f"--set {word}: write it as NAME=NUMBER") from error
    return found


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["gpu"]:  # needs less than the others, and has options of its own
        return int(importlib.import_module("bench.gpu.command").main(words[1:]))
    given = _parser().parse_args(words)
    if given.scenario not in SCENARIOS:
        print(f"error: no scenario {given.scenario!r}; there are: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    if given.scenario not in PACED and (given.rate is not None or given.share):
        print(f"error: --rate and --share are of {', '.join(PACED)}, not of {given.scenario}; leave them out", file=sys.stderr)
        return 2
    if given.json is not None and not given.json.absolute().parent.is_dir():
        print(f"error: the folder of {given.json} does not exist; make it first", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no server outlives us
    start = Start.now()
    try:
        options = Options(given.model, given.seconds, given.quick, given.seed, _set(given.set), given.rate, tuple(given.share))
        measured = SCENARIOS[given.scenario].load(given.simulated)(options)
    except HarvesterError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    result = outcome(given.scenario, options, start, measured)
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    if given.json is None:
        print(text, end="")
    else:
        draft = given.json.with_name(f".{given.json.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(given.json)
        drawn = draw(result, given.json)
        print(f"wrote {given.json}{f' and {drawn}' if drawn else ''} after {result['seconds']:.0f} s", file=sys.stderr)
        if not is_clean(start.commit):
            print("warning: made from uncommitted changes; `make test` refuses such a result in bench/results", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
