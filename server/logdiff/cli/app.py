"""The `logdiff` application: the list of commands, and one place that turns every failure into an exit code."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import typer

from logdiff.cli import (
    align,
    audit,
    capture,
    diagnose,
    dispatch,
    evidence,
    kernels,
    localize,
    models,
    playbook,
    probe,
    serve,
)
from logdiff.cli.output import Output
from logdiff.errors import CancelledError, InputError, LogdiffError, storage_error


class InternalError(LogdiffError):
    """Something that should not happen: a bug of logdiff."""

    exit_code = 3


def build() -> typer.Typer:
    """Assemble the application."""
    app = typer.Typer(
        name="logdiff",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measure how far the log-probabilities of a rollout engine and a training engine are apart, show it, "
        "align the engines, and prove it.",
        epilog="Exit codes: 0 equal or fine, 1 a difference, 2 invalid input or evidence, 3 internal error.",
    )

    @app.callback()
    def _root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_print_version),
    ) -> None:
        pass

    app.command("demo")(capture.demo)
    app.add_typer(models.app, name="models")
    app.command("run")(capture.run)
    app.command("measure")(evidence.measure)
    app.command("compare")(evidence.compare)
    app.command("diagnose")(diagnose.diagnose)
    app.command("localize")(localize.localize)
    app.command("import")(evidence.import_)
    app.command("report")(evidence.report)
    app.command("query")(evidence.query)
    app.command("audit")(audit.audit)
    app.add_typer(align.app, name="align")
    app.add_typer(kernels.app, name="kernels")
    app.add_typer(probe.app, name="probe")
    app.command("dispatch")(dispatch.dispatch)
    app.command("playbook")(playbook.playbook)
    app.command("env")(capture.env)
    app.command("serve")(serve.serve)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from logdiff import __version__

        typer.echo(f"logdiff {__version__}")
        raise typer.Exit


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing escapes but the exit of the interpreter itself."""
    out = Output("--json" in argv)
    _terminate_like_interrupt()
    try:
        return _run(argv, out)
    except KeyboardInterrupt:
        return _report(out, _cancelled(argv))
    finally:
        out.close()


def _run(argv: Sequence[str], out: Output) -> int:
    try:
        code = build()(args=list(argv), standalone_mode=False, obj=out, prog_name="logdiff")
        if code == _INTERRUPTED:
            return _report(out, _cancelled(argv))
        out.flush()
        return code if isinstance(code, int) else 0
    except Exception as error:
        return _report(out, error)


_INTERRUPTED = 130
"""What typer makes of a KeyboardInterrupt inside a command."""


def _cancelled(argv: Sequence[str] = ()) -> CancelledError:
    hints = {
        "run": "what was captured stays in the case; run again with the same --case",
        "demo": "what was captured stays in the case; run again with the same --case",
        "align": "`logdiff align status` says what is on, whatever was cut off",
    }
    return CancelledError("cancelled", hint=hints.get(next(iter(argv), ""), "run the command again"))


def _report(out: Output, error: Exception) -> int:
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        error = _cancelled()
    elif type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(str(error), err=True)
        return 2
    elif isinstance(error, typer.TyperException):
        error = _usage(error)
    elif isinstance(error, OSError) and (refused := storage_error(error)) is not None:
        if os.environ.get("LOGDIFF_DEBUG"):
            traceback.print_exception(error)
        error = refused
    elif not isinstance(error, LogdiffError):
        if os.environ.get("LOGDIFF_DEBUG"):
            traceback.print_exception(error)
        error = InternalError(
            f"{type(error).__name__}: {error}",
            hint="this is a bug in logdiff; LOGDIFF_DEBUG=1 prints where it happened",
        )
    assert isinstance(error, LogdiffError)
    out.error(error)
    return error.exit_code


def _usage(error: typer.TyperException) -> InputError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "logdiff"
    return InputError(error.format_message(), hint=f"`{command} --help` lists arguments and options")


def _terminate_like_interrupt() -> None:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that engines and their processes are closed.

    A SIGHUP that is ignored when the command starts stays ignored: that is what `nohup` asks for.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handler: Callable[[int, FrameType | None], Any] = stop
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)
    except ValueError:  # not the main thread: the host process keeps its own handlers
        return
