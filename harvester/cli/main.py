"""The program: its commands, and how errors end it."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harvester.cli.shared import DebugOption, StateOption, UrlOption, remember
from harvester.cli.tree import PLACES, Commands
from harvester.core import DISTRIBUTION, __version__
from harvester.errors import HarvesterError

_TABLES = ("duckdb", "fsspec", "jsonschema", "psutil")  # installed by the extra `tables`


class Program(TyperGroup):
    """Turns what a command raises into one line on stderr and an exit code."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.commands = Commands()  # type: ignore[assignment]  # a dict that is only read

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list in `--help`, without loading a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in PLACES.items()])

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
        except ModuleNotFoundError as error:
            if error.name not in _TABLES:
                raise
            _fail(ctx, f"error: this command needs {error.name}, which is not installed; pip install '{DISTRIBUTION}[tables]'")
            raise typer.Exit(1) from error
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
    from harvester.cli.table import visible  # only here: it is not needed to start

    print(visible(line, is_one_line=False), file=sys.stderr)


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


def run(arguments: list[str] | None = None) -> None:
    """Run the program on ``arguments`` (the command line's where None) and exit."""
    app(args=arguments, prog_name="harvester")
