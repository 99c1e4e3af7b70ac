"""Read-only SQL over the tables of a case: no file access, one statement, bounded rows, cells, time and memory.

Tables: `tokens(sample_id, step, rank, side, position, token_id, logprob, mask)`, `samples`, and where the case has
them `topk`, `experts` and `entropy(sample_id, step, rank, side, position, entropy)`. `logprob` is FLOAT, exactly the
fp32 value of the evidence; `bits(x)` gives its 32 bits as a whole number, so `bits(a.logprob) <> bits(b.logprob)`
compares bits (also of -0 and NaN).
"""

from __future__ import annotations

import decimal
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from logdiff.case.case import Case
from logdiff.case.token_reader import open_table
from logdiff.errors import CaseError, InputError
from logdiff.jsonio import plain

FORMAT = "logdiff-query/1"
MAX_SQL_CHARACTERS = 100_000
MAX_CELL_CHARACTERS = 10_000
MAX_LIST_ELEMENTS = 1000
MAX_RESULT_CHARACTERS = 8_000_000
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "max_temp_directory_size": "4GB",
    # Folding constants ahead of time knows neither the memory limit nor an interrupt: repeat('x', 1000000000).
    "disabled_optimizers": "expression_rewriter,statistics_propagation",
}
_TOKEN_COLUMNS = "sample_id, step, rank, side, position, token_id, logprob, mask"
_VIEWS = {
    "tokens": f"CREATE VIEW tokens AS SELECT {_TOKEN_COLUMNS} FROM tokens_file",
    "entropy": "CREATE VIEW entropy AS SELECT sample_id, step, rank, side, position, entropy FROM tokens_file "
    "WHERE entropy IS NOT NULL",
}
_BITS = "CREATE MACRO bits(x) AS CAST(CAST(CAST(x AS FLOAT) AS BIT) AS UINTEGER)"


def query(
    case: Case | str | os.PathLike[str],
    sql: str,
    *,
    limit_rows: int = 1000,
    timeout_s: float = 10.0,
    memory: str = "512MB",
    threads: int = 2,
) -> dict[str, Any]:
    """Run one SELECT over the evidence of a case, sealed or open.

    Args:
        case: an opened case, or its folder (then sizes are verified, hashes are not).
        sql: one SELECT (or WITH, VALUES, SHOW, DESCRIBE) in DuckDB's dialect.
        limit_rows: rows returned at most.
        timeout_s: seconds after which the query is interrupted.
        memory: DuckDB's memory limit.
        threads: DuckDB's threads.

    Returns:
        `logdiff-query/1`: `columns`, `rows` (lists; non-finite numbers as strings), `truncated` (rows were left out,
        or a cell was cut to `MAX_CELL_CHARACTERS` or `MAX_LIST_ELEMENTS`).

    Raises:
        InputError: no single SELECT, DuckDB's own refusal in its words, or the time or memory limit.
        CaseError: the case has no readable token table.
    """
    import duckdb

    if limit_rows < 1 or timeout_s <= 0:
        raise InputError("limits must be positive", value=[limit_rows, timeout_s], hint="raise limit_rows or timeout_s")
    if len(sql) > MAX_SQL_CHARACTERS:
        raise InputError("the query is too long", value=len(sql), hint=f"at most {MAX_SQL_CHARACTERS} characters")
    if any("\ud800" <= c <= "\udfff" for c in sql):
        raise InputError("the query is no valid Unicode text", value=ascii(sql[:200]), hint="write it in UTF-8")
    folder = (case if isinstance(case, Case) else Case.open(case, verify=False)).path
    with tempfile.TemporaryDirectory(prefix="logdiff-query-") as spill:
        settings = _SETTINGS | {"memory_limit": memory, "threads": str(threads), "temp_directory": spill}
        try:
            connection = duckdb.connect(":memory:", config=settings)
        except duckdb.Error as error:
            raise InputError(
                f"memory or threads: {error}", value=[memory, threads], hint="for example 512MB and 2"
            ) from None
        try:
            _register(connection, folder)
            connection.execute("SET lock_configuration = true")
            return _in_thread(connection, lambda: _run(connection, sql, limit_rows, timeout_s))
        except duckdb.Error as error:
            raise _refusal(error, sql) from None
        finally:
            connection.close()


def _register(connection: Any, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.dataset

    # Arrow reads the files, so that SQL itself needs no right to open any.
    found = [name for name in ("tokens", "samples", "topk", "experts") if (folder / f"{name}.parquet").is_file()]
    for name in found or ["tokens"]:
        path = folder / f"{name}.parquet"
        with open_table(path) as file:
            fields = [
                pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
                for f in file.schema_arrow
            ]
        dataset = pyarrow.dataset.dataset(str(path), schema=pa.schema(fields), format="parquet")
        connection.register("tokens_file" if name == "tokens" else name, dataset)
    if "tokens" not in found:
        raise CaseError("the case has no tokens.parquet", value=str(folder), hint="resume the run, or make it again")
    for statement in (*_VIEWS.values(), _BITS):
        connection.execute(statement)


def _in_thread(connection: Any, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do `work` in another thread, since no signal reaches a main thread that is inside DuckDB."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _run(connection: Any, sql: str, limit_rows: int, timeout_s: float) -> dict[str, Any]:
    import duckdb

    statements = connection.extract_statements(sql)
    kinds = [str(statement.type).split(".")[-1] for statement in statements]
    if kinds != ["SELECT"]:
        raise InputError(
            "exactly one SELECT statement is allowed", value=kinds, hint="send one SELECT or WITH ... SELECT"
        )
    connection.execute("BEGIN TRANSACTION READ ONLY")
    expired = threading.Event()

    def interrupt() -> None:
        expired.set()
        connection.interrupt()

    timer = threading.Timer(timeout_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        connection.execute(statements[0])
        columns = [column[0] for column in connection.description or []]
        rows: list[list[Any]] = []
        size, truncated = 0, False
        while not truncated and (chunk := connection.fetchmany(min(256, limit_rows + 1 - len(rows)))):
            for values in chunk:
                if len(rows) == limit_rows or size > MAX_RESULT_CHARACTERS:
                    truncated = True
                    break
                cells = [_cell(value) for value in values]
                truncated |= any(cut for _, cut in cells)
                rows.append([cell for cell, _ in cells])
                size += sum(len(cell) if isinstance(cell, str) else 16 for cell, _ in cells)
        return {"format": FORMAT, "columns": columns, "rows": rows, "truncated": truncated}
    except duckdb.InterruptException:
        if not expired.is_set():
            raise
        raise InputError(
            f"the query ran longer than {timeout_s:g} s and was stopped",
            value=sql[:200],
            hint="aggregate more, join less, or raise the time limit",
        ) from None
    finally:
        timer.cancel()


def _cell(value: Any) -> tuple[Any, bool]:
    """A cell as JSON holds it, and whether it was cut."""
    if isinstance(value, decimal.Decimal):
        return plain(float(value)), False
    if isinstance(value, (list, dict)):
        kept = _head(value)
        text = str(kept)
        return (plain(kept), kept != value) if len(text) <= MAX_CELL_CHARACTERS else (text[:MAX_CELL_CHARACTERS], True)
    if isinstance(value, (str, bytes)) and len(value) > MAX_CELL_CHARACTERS:
        return plain(value[:MAX_CELL_CHARACTERS])[:MAX_CELL_CHARACTERS], True
    value = plain(value)
    if isinstance(value, str) and len(value) > MAX_CELL_CHARACTERS:
        return value[:MAX_CELL_CHARACTERS], True
    return value, False


def _head(value: Any) -> Any:
    """Nested values with the first elements of each list only, so that a long list costs nothing."""
    if isinstance(value, list):
        return [_head(item) for item in value[:MAX_LIST_ELEMENTS]]
    if isinstance(value, dict):
        return {key: _head(item) for key, item in list(value.items())[:MAX_LIST_ELEMENTS]}
    return value[: MAX_CELL_CHARACTERS + 1] if isinstance(value, str) else value


def _refusal(error: Exception, sql: str) -> InputError:
    words = str(error).strip()[:2000]
    hint = "columns and tables: SELECT table_name, column_name FROM information_schema.columns"
    if "Permission" in words or "disabled by configuration" in words:
        hint = "SQL sees the tables of the case only, no files"
    elif type(error).__name__ == "OutOfMemoryException":
        hint = "aggregate more or raise the memory limit"
    return InputError(words, value=sql[:200], hint=hint)
