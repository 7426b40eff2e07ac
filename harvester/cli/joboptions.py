"""What `harvester submit` is told on its command line: one name for each word."""

from pathlib import Path
from typing import Annotated

import typer

from connectors.files.stdin import Form
from harvester.cli.completion import task_names
from harvester.cli.into import INTO_HELP
from jobs.spec import OnLong

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="File, glob or folder, here or at a URI; a database; or - for standard input.", show_default=False
    ),
]
Task = Annotated[
    str | None,
    typer.Option("--task", "-t", metavar="T", help="Built-in task (harvester tasks) or FILE.yaml; summarize.", autocompletion=task_names),
]
Labels = Annotated[str | None, typer.Option("--labels", metavar="A,B", help="Labels to choose from; implies --task classify.")]
Schema = Annotated[Path | None, typer.Option("--schema", metavar="FILE", help="JSON schema to extract; implies --task extract.")]
To = Annotated[str | None, typer.Option("--to", metavar="LANG", help="Language to translate into; implies --task translate.")]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the task, as in tone=calm; repeat it for more.", show_default=False),
]
Prompt = Annotated[str | None, typer.Option("--prompt", metavar="TPL", help="Prompt with {column} places; implies --task ask.")]
Column = Annotated[str | None, typer.Option("--column", metavar="C", help="Text column; picked where one is obvious.")]
Keep = Annotated[str | None, typer.Option("--keep", metavar="A,B", help="Input columns to keep in the results, or none; all.")]
IdColumn = Annotated[str | None, typer.Option("--id-column", metavar="C", help="Column whose values must be unique.")]
Table = Annotated[str | None, typer.Option("--table", metavar="T", help="Table of a database.")]
Query = Annotated[str | None, typer.Option("--query", metavar="SQL", help="Query over a database.")]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="M", help="Model it must run on; the server's.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Most tokens of an answer; the task's.")]
Temperature = Annotated[float | None, typer.Option("--temperature", metavar="X", min=0.0, max=2.0, help="The task's.")]
InputFormat = Annotated[
    Form | None, typer.Option("--input-format", help="What standard input is; told by its first bytes.", show_default=False)
]
Into = Annotated[str | None, typer.Option("--into", "-o", metavar="TARGET", help=f"{INTO_HELP} Implies --watch.", show_default=False)]
LongTexts = Annotated[OnLong, typer.Option("--on-long", help="A text too long for the model: cut it, ask in parts, or fail its row.")]
MaxErrorRate = Annotated[
    float,
    typer.Option("--max-error-rate", metavar="X", min=0.0, max=1.0, help="Stop it when after 100 rows more than this share failed."),
]
Weight = Annotated[float, typer.Option("--weight", metavar="X", min=0.001, max=1000.0, help="Share beside other jobs, as a ratio.")]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="WHEN", help="It should end by then: 6h, 18:30, 2030-01-31T18:30; it expires then.")
]
New = Annotated[bool, typer.Option("--new", help="Make a new job even where the same one exists.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Watch it to its end; exit with 1 if it failed.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print rows, tokens and time it would take; make nothing.")]
