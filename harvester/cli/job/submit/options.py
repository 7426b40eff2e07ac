"""Options of `harvester submit`."""

from pathlib import Path
from typing import Annotated

import typer

from connectors.files.stdin import Form
from harvester.cli.completion import task_names
from harvester.cli.job.into import INTO_HELP
from jobs.spec import OnLong

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="Local path or URI of a file, glob, folder or database; - reads standard input.", show_default=False
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        "-t",
        metavar="T",
        help="Built-in task (see: harvester tasks) or task file FILE.yaml. Default: summarize.",
        autocompletion=task_names,
    ),
]
Labels = Annotated[
    str | None, typer.Option("--labels", metavar="A,B", help="Labels to choose from. Implies --task classify, without --prompt.")
]
Schema = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="File of a JSON schema to extract. Implies --task extract, without --prompt."),
]
To = Annotated[str | None, typer.Option("--to", metavar="LANG", help="Language to translate into. Implies --task translate.")]
Prompt = Annotated[
    str | None, typer.Option("--prompt", metavar="TPL", help="Prompt template; {column} stands for the row's value. Implies --task ask.")
]
Column = Annotated[
    str | None, typer.Option("--column", metavar="C", help="Column that holds the text. Default: the only or best-named text column.")
]
Image = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="C",
        help="Column of images to show: bytes, paths, addresses at allowed hosts. Can be repeated.",
        show_default=False,
    ),
]
Adapter = Annotated[
    str | None, typer.Option("--adapter", metavar="NAME", help="LoRA adapter of the server that answers. Default: the task's, or none.")
]
Keep = Annotated[
    str | None, typer.Option("--keep", metavar="A,B", help="Input columns to copy into the results; none for no column. Default: all.")
]
IdColumn = Annotated[
    str | None, typer.Option("--id-column", metavar="C", help="Column that identifies rows; submit fails if its values are not unique.")
]
Table = Annotated[
    str | None, typer.Option("--table", metavar="T", help="Table of a database, sheet of a workbook, or split of a data set.")
]
Query = Annotated[
    str | None, typer.Option("--query", metavar="SQL", help="SELECT that produces the rows; a file or folder is the table source in it.")
]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Only rows that this SQL condition is true for.")]
Sample = Annotated[int | None, typer.Option("--sample", metavar="N", min=1, help="Only N rows, drawn at random; see --seed.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of --sample: the same one draws the same rows.")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N rows, after --where and --sample.")]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="E", help="Encoding of text files, such as cp1252. Default: by its byte-order mark, else UTF-8."),
]
Ragged = Annotated[bool, typer.Option("--ragged", help="Take CSV rows shorter or longer than the header: nulls, and columns of their own.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="M", help="Model that the job needs; a server started for it loads this one. Default: the server's."
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Maximum output tokens for each row. Default: the task's.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", metavar="X", min=0.0, max=2.0, help="Sampling temperature. Default: the task's.")
]
Thinking = Annotated[
    str | None,
    typer.Option(
        "--thinking",
        metavar="WHEN",
        help="Thinking before the answer: off, on, or a maximum number of tokens. Default: the task's, else off if the model can.",
        show_default=False,
    ),
]
TemplateKwargs = Annotated[
    str | None,
    typer.Option("--chat-template-kwargs", metavar="JSON", help="More arguments of the model's chat template, as a JSON object."),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Option of the task, such as tone=calm. Can be repeated.", show_default=False),
]
InputFormat = Annotated[
    Form | None,
    typer.Option("--input-format", help="Format of standard input. Default: detected from its first bytes.", show_default=False),
]
Into = Annotated[str | None, typer.Option("--into", "-o", metavar="TARGET", help=f"{INTO_HELP} Implies --watch.", show_default=False)]
LongTexts = Annotated[OnLong, typer.Option("--on-long", help="For a text longer than the context: cut it, ask in parts, or fail the row.")]
MaxErrorRate = Annotated[
    float,
    typer.Option(
        "--max-error-rate", metavar="X", min=0.0, max=1.0, help="Stop the job if more than this share of its rows failed (after 100 rows)."
    ),
]
Weight = Annotated[
    float,
    typer.Option(
        "--weight", metavar="X", min=0.001, max=1000.0, help="Relative share: with 2 the job gets twice the tokens of a job with 1."
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", metavar="WHEN", help="When the job expires: 6h, 18:30 or 2030-01-31T18:30. A late job gets a larger share before."
    ),
]
New = Annotated[bool, typer.Option("--new", help="Make a new job even if the same one exists.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end; exit with 1 if it failed.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print rows, tokens, estimated time and price; make no job.")]
