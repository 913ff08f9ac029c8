"""Commands and exit codes; prints what commands were asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from ingestor import __version__, telemetry
from ingestor.ending import in_words
from ingestor.errors import IngestorError
from ingestor.launch import Launch, Outputs, complain
from ingestor.usage import (
    COMPLETION,
    AsJson,
    Commands,
    Config,
    Overrides,
    examples,
    name_of,
    read_settings,
    show,
    with_command,
)
from ingestor.watching import trace

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong command line; it does not export it."""

app = typer.Typer(cls=Commands, rich_markup_mode=None, no_args_is_help=True)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    sys.stderr = telemetry.lasting_stderr()
    raise SystemExit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def execute(arguments: list[str]) -> int:
    """Run one command; options without a command are those of `run`."""
    command: Any = typer.main.get_command(app)
    options = {"prog_name": name_of(arguments), "complete_var": COMPLETION, "standalone_mode": False}
    try:
        return command.main(with_command(arguments), **options) or 0
    except USAGE_ERROR as error:
        if not arguments:
            typer.echo(error.format_message(), err=True)  # the help
            return 2
        complain(f"{error.format_message().rstrip('.')}; see --help")
        return 2
    except IngestorError as error:
        complain(in_words(error))
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes at its end
        return 1
    except OSError as error:
        complain(in_words(error))
        return 1


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "check --config my.yaml", "--config my.yaml", 'search --config my.yaml "what do I look for?"'
    ),
)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Stream text shards through an encoder into Qdrant, and keep the collection in step with them.

    Without a command it is `run`: python -m ingestor --config my.yaml --limit 1000. COMMAND --help says more.
    """
    if show:
        typer.echo(f"ingestor {__version__}")
        raise typer.Exit


@app.command(
    epilog=examples(
        "--config my.yaml",
        "--config my.yaml --dry-run --chunks chunks.jsonl --limit 20",
        "--config my.yaml --set qdrant.collection=trial --report report.json",
    )
)
def run(
    config: Config,
    overrides: Overrides = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Read this many documents; finish no shard, delete nothing."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Embed everything again, in place.")] = False,
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Drop the collection and its state first.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over a collection written from another state file.")
    ] = False,
    allow_deletes: Annotated[
        bool, typer.Option("--allow-deletes", help="Let mirror delete more than max_delete_fraction.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read, chunk and count; write nothing but the files asked for.")
    ] = False,
    chunks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --dry-run: each new chunk as a JSON line; with --full, each chunk."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report there, as JSON.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the report there, as a page to look at."),
    ] = None,
    lock_wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Wait for another run to end.")
    ] = 0.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long a stopped run may go on writing.")
    ] = 8.0,
    profile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a trace of some batches there.")
    ] = None,
    profile_window: Annotated[
        str, typer.Option(metavar="SKIP,COUNT", help="With --profile: batches to skip, and to trace.")
    ] = "20,20",
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress line.")] = False,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="How messages are written.")] = "text",
) -> None:
    """Ingest: the main job, also without the word `run`."""
    from ingestor.config.settings import RunOptions

    options = RunOptions(
        limit=limit,
        full=full,
        recreate=recreate,
        adopt=adopt,
        allow_deletes=allow_deletes,
        dry_run=dry_run,
        chunks=chunks,
        lock_wait_s=lock_wait,
        drain_timeout_s=drain_timeout,
        profile=profile,
        profile_window=trace.window_of(profile_window),
    )
    outputs = Outputs(report, html, not no_progress, log_format)
    raise typer.Exit(Launch(config, overrides or [], options, outputs).run())


@app.command(
    epilog=examples(
        'search --config my.yaml "who wrote it?" -k 3 --filter lang=en',
        "search --config my.yaml --queries queries.jsonl --json",
    )
)
def search(
    config: Config,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to look for.")] = None,
    hits: Annotated[int, typer.Option("-k", min=1, metavar="N", help="How many chunks to find.")] = 5,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many queries: JSON Lines with _id and text.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every point, without the index.")
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FIELD=VALUE",
            help="Only such points; may be given again. Digits are a number, in quotes text: year='\"7\"'.",
        ),
    ] = None,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Query the collection with the same model, and its query prompt."""
    from ingestor.commands import search as command

    settings = read_settings(config, overrides)
    wanted = command.read_queries(text, queries)
    answers = command.search(
        settings, wanted, hits=hits, exact=exact, where=where or [], warn=partial(complain, label="warning")
    )
    show(command.as_json(answers) if as_json else command.as_text(answers))


@app.command(epilog=examples("check --config my.yaml", "check --config my.yaml --json"))
def check(
    config: Config,
    quick: Annotated[bool, typer.Option("--quick", help="Do not load the model's weights.")] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Say what a run would stumble over, what to do about it, and how long it will take."""
    from ingestor.commands import check as command

    settings = read_settings(config, overrides)
    findings = []
    for finding in command.check(settings, quick=quick):
        findings.append(finding)
        if not as_json:
            show([finding])
    show([command.as_json(findings) if as_json else command.summary(findings)])
    raise typer.Exit(command.exit_code(findings))


@app.command(epilog=examples("status --config my.yaml", "status --config my.yaml --rebuild"))
def status(
    config: Config,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First make the state file again, from the collection.")
    ] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Say what the state file knows of the collection."""
    from ingestor.commands import status as command

    settings = read_settings(config, overrides)
    if rebuild:
        for line in command.rebuild(settings):
            typer.echo(line, err=True)
    found = command.status(settings)
    show(command.as_json(found) if as_json else command.as_text(found))


@app.command(epilog=examples("verify --config my.yaml", "verify --config my.yaml --sample 1000"))
def verify(
    config: Config,
    sample: Annotated[
        int, typer.Option(min=0, metavar="N", help="Embed so many stored texts again; 0 loads no model.")
    ] = 100,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Compare the collection with the state file, point by point, and some vectors with their texts."""
    from ingestor.commands import verify as command
    from ingestor.running.generations import own

    settings = own(read_settings(config, overrides))
    found = command.verify(settings, sample=sample)
    show([command.as_json(settings, found)] if as_json else command.findings(found))
    command.require_same(settings, found)


@app.command(epilog=examples("failures --config my.yaml", "failures --config my.yaml --retry"))
def failures(
    config: Config,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run, and read the shards again that hold open failures.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --retry: write the run's report there.")
    ] = None,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="With --retry: no progress line.")
    ] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """List what was refused and is still open: where, why and since when."""
    from ingestor.commands import failures as command
    from ingestor.config.settings import RunOptions
    from ingestor.running.generations import own

    found = command.failures(own(read_settings(config, overrides)))
    if retry:
        outputs = Outputs(report, progress=not no_progress)
        raise typer.Exit(Launch(config, overrides or [], RunOptions(retry=True), outputs).run())
    show(command.as_json(found) if as_json else command.as_text(found))


@app.command(epilog=examples("promote --config my.yaml"))
def promote(
    config: Config,
    sample: Annotated[
        int, typer.Option(min=0, metavar="N", help="Embed so many stored texts again; 0 loads no model.")
    ] = 100,
    overrides: Overrides = None,
) -> None:
    """Verify the collection that the configuration built, and let the alias point at it (server only)."""
    from ingestor.commands import promote as command

    settings = read_settings(config, overrides)
    show(command.promote(settings, sample=sample, note=partial(typer.echo, err=True)))


@app.command(epilog=examples("rollback --config my.yaml"))
def rollback(config: Config, overrides: Overrides = None) -> None:
    """Let the alias point at the collection that was live before (server only)."""
    from ingestor.commands import promote as command

    show(command.rollback(read_settings(config, overrides)))
