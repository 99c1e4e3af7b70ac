"""SQL over a case sees the evidence, all of it exactly, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest
from logdiff.case import Case
from logdiff.case.batch import PairMeta
from logdiff.case.query import query
from logdiff.errors import CaseError, InputError


@pytest.fixture
def case(tmp_path, rich_batch):
    case = Case.create(tmp_path / "case", "n", "import", {})
    with case.open_writer() as writer:
        writer.append(rich_batch)
    case.write_meta(PairMeta())
    return case


def test_the_token_table_has_the_columns_of_the_contract(case):
    result = query(case, "select * from tokens")
    assert result["format"] == "logdiff-query/1"
    assert result["columns"] == ["sample_id", "step", "rank", "side", "position", "token_id", "logprob", "mask"]
    assert len(result["rows"]) == 10
    assert result["rows"][0] == ["a", 0, 0, "rollout", 0, 5, float(np.float32(-0.1)), True]
    assert result["rows"][4][6] is None
    assert result["truncated"] is False


def test_an_open_and_a_sealed_case_answer_alike(case):
    sql = "select side, count(logprob) as n from tokens group by side order by side"
    assert query(case, sql)["rows"] == [["rollout", 4], ["train", 5]]
    path = case.path
    case.seal()
    assert query(path, sql)["rows"] == [["rollout", 4], ["train", 5]]


def test_the_other_tables_are_there(case):
    assert query(case, "select sample_id, prompt_ids, train_token_ids from samples")["rows"] == [
        ["a", [1, 2], [1, 2, 5, 6, 7]],
        ["b", [3], None],
    ]
    top = query(case, "select position, k, token_id, logprob from topk where sample_id = 'b' order by 1, 2")["rows"]
    assert top == [[0, 0, 6, -6.0], [0, 1, 7, -7.0], [1, 0, 8, -8.0], [1, 1, 9, -9.0]]
    assert query(case, "select sum(expert) from experts where side = 'train'")["rows"] == [[sum(range(20))]]
    assert query(case, "select sum(entropy) from entropy where side = 'train'")["rows"] == [[7.5]]


def test_bits_are_compared_exactly(case):
    sql = (
        "select count(*) from tokens a join tokens b using (sample_id, step, rank, position) "
        "where a.side = 'rollout' and b.side = 'train' and bits(a.logprob) <> bits(b.logprob)"
    )
    assert query(case, sql)["rows"] == [[2]]
    assert query(case, "select bits(1::float), bits(-0.0::float)")["rows"] == [[0x3F800000, 0x80000000]]


def test_numbers_come_as_json_has_them(case):
    rows = query(case, "select 'nan'::float, '-inf'::double, 1.5, sum(token_id), date '2020-01-02' from tokens")["rows"]
    assert rows == [["nan", "-inf", 1.5, 70, "2020-01-02"]]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from '{case}/tokens.parquet'",
        "select * from read_parquet('{case}/tokens.parquet')",
        "select * from parquet_file_metadata('{case}/tokens.parquet')",
        "select * from read_json('{case}/manifest.json')",
        "select * from glob('/*')",
        "select * from read_csv('http://localhost/x.csv')",
        "select * from sqlite_scan('/tmp/x.db', 't')",
        "select getenv('HOME')",
        "select * from query('copy (select 1) to ''{case}/x''')",
        "select * from enable_logging('QueryLog', storage='file', storage_config={{'path': '{case}/x'}})",
        "copy (select 1) to '{case}/x'",
        "copy tokens to '{case}/x' (format csv)",
        "export database '{case}/x'",
        "attach '{case}/x' as other",
        "install httpfs",
        "load httpfs",
        "pragma database_list",
        "pragma enable_profiling",
        "set enable_external_access = true",
        "set memory_limit = '100GB'",
        "reset lock_configuration",
        "call pragma_version()",
        "create table x as select 1",
        "drop view tokens",
        "delete from samples",
        "insert into samples values (1)",
        "with x as (delete from samples returning *) select * from x",
        "begin",
        "checkpoint",
        "prepare p as select 1",
        "pivot tokens on side using count(*)",
        "select 1; select 2",
        "select 1; copy (select 1) to '{case}/x'",
        "/* select */ attach '{case}/x'",
        "explain analyze select 1",
        "",
        "-- nothing",
        "not sql at all",
        "select no_such_column from tokens",
        "select '",
        "select " + "(" * 5000 + "1" + ")" * 5000,
        "select '" + "x" * 200_000 + "'",
    ],
)
def test_hostile_or_wrong_sql_is_refused_and_touches_nothing(case, sql):
    before = sorted(p.name for p in case.path.iterdir())
    with pytest.raises(InputError) as caught:
        query(case, sql.format(case=case.path) if len(sql) < 1000 else sql)
    assert caught.value.message
    assert caught.value.hint
    assert sorted(p.name for p in case.path.iterdir()) == before


def test_variables_of_the_program_are_no_tables(case):
    secrets = {"password": ["x"]}
    with pytest.raises(InputError, match="secrets"):
        query(case, "select * from secrets")
    assert secrets


def test_rows_are_limited_and_said_to_be(case):
    result = query(case, "select * from range(1000000000000)", limit_rows=7)
    assert result["rows"] == [[i] for i in range(7)]
    assert result["truncated"] is True
    assert query(case, "select * from range(7)", limit_rows=7)["truncated"] is False


def test_a_query_that_does_not_end_is_stopped(case):
    start = time.monotonic()
    with pytest.raises(InputError, match=r"longer than 0\.5 s"):
        query(case, "select count(*) from range(1000000000000) a, range(1000000) b", timeout_s=0.5)
    assert time.monotonic() - start < 5


def test_memory_is_limited(case):
    with pytest.raises(InputError):
        query(case, "select list(x::varchar || repeat('a', 200)) from range(2000000) t(x)", memory="64MB", timeout_s=30)


def test_long_cells_are_cut_and_said_to_be(case):
    result = query(case, "select repeat('x', 50000), range(5000), 'ok', [repeat('y', 50000)]")
    long, many, ok, nested = result["rows"][0]
    assert (long, many, ok) == ("x" * 10_000, list(range(1000)), "ok")
    assert len(nested) == 10_000
    assert result["truncated"] is True


def test_a_case_without_a_table_says_so(tmp_path):
    case = Case.create(tmp_path / "empty", "n", "import", {})
    with pytest.raises(CaseError, match=r"tokens\.parquet"):
        query(case, "select 1")
    (case.path / "tokens.parquet").write_bytes(b"PAR1 half")
    with pytest.raises(CaseError, match="cut off"):
        query(case, "select 1")


def test_limits_must_be_positive(case):
    with pytest.raises(InputError):
        query(case, "select 1", limit_rows=0)
    with pytest.raises(InputError, match="memory"):
        query(case, "select 1", memory="plenty")


def test_text_that_is_no_unicode_is_refused(case):
    with pytest.raises(InputError, match="Unicode") as caught:
        query(case, "select '\udcff'")
    assert "udcff" in caught.value.value


def test_a_constant_is_not_computed_outside_the_memory_limit(case):
    started = time.monotonic()
    with pytest.raises(InputError, match="Memory"):
        query(case, "select repeat('x', 1000000000)", timeout_s=30)
    assert time.monotonic() - started < 5
