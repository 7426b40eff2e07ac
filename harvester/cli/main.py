"""The program: its commands, and how errors end it."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harvester.cli import chat, tasks
from harvester.cli.invocation import DebugOption, StateOption, UrlOption, remember
from harvester.cli.job import commands as jobs
from harvester.cli.job import results, status
from harvester.cli.server import doctor, env, key, profile, repair, serve, verify
from harvester.core import __version__
from harvester.errors import HarvesterError


class Program(TyperGroup):
    """Turns what a command raises into one line on stderr and an exit code."""

    def make_context(self, *given: Any, **named: Any) -> Any:
        try:
            return super().make_context(*given, **named)
        except BrokenPipeError as error:  # of --help and --version, which are answered here
            raise _reader_left() from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HarvesterError as error:
            _fail(ctx, f"error: {error.message}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        except BrokenPipeError as error:
            raise _reader_left() from error
        except Exception as error:
            # Typer ends a command by exceptions of its own; they carry the exit code.
            if isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "exit_code"):
                raise
            _fail(ctx, f"error: internal: {type(error).__name__}: {' '.join(str(error).split())[:300]}; --debug shows where")
            raise typer.Exit(1) from error


def _reader_left() -> typer.Exit:
    """The reader of our output has gone (`| head`), which is no error. Keeps the interpreter's last flush from the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return typer.Exit(0)


def _fail(ctx: Any, line: str) -> None:
    sys.stdout.flush()
    if ctx.meta.get("harvester.debug"):
        traceback.print_exc()
    print(line, file=sys.stderr)


app = typer.Typer(
    cls=Program,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"harvester {__version__}")
        raise typer.Exit


@app.callback()
def program(
    ctx: typer.Context,
    state: StateOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Run batch LLM jobs over tables on the vLLM replicas that serve chat, within the latency promised to chat.

    \b
    Example:
        harvester serve
        harvester submit docs.parquet --task summarize --watch
        harvester sql "select * from results('latest') limit 5"

    Exit codes: 0 done, 1 failed, 2 wrong use, 3 no server answers.
    """
    remember(ctx, state, url, debug)


for group in (serve, jobs, status, results, chat, tasks, key, profile, doctor, env, verify, repair):
    app.add_typer(group.app)


def main(arguments: list[str] | None = None) -> None:
    """Run the program on ``arguments`` (the command line's where None) and exit."""
    app(args=arguments, prog_name="harvester")
