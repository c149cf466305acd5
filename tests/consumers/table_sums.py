"""Reads exported tables with pandas, PyArrow and DuckDB, and prints what each finds, as JSON.

    python table_sums.py CSV PARQUET
"""

import json
import sys

import duckdb
import pandas
import pyarrow.parquet

CSV, PARQUET = sys.argv[1:]

# Bytes by category when the middle row was allocated.
HALF = int(pandas.read_csv(CSV)["time_ns"].median())
LIVE = f"""SELECT coalesce(category, '-'), sum(size) FROM '{{}}'
WHERE time_ns <= {HALF} AND (freed_ns IS NULL OR freed_ns > {HALF}) GROUP BY ALL"""


def of_frame(frame):
    live = frame[(frame["time_ns"] <= HALF) & (frame["freed_ns"].isna() | (frame["freed_ns"] > HALF))]
    categories = live.groupby(live["category"].fillna("-"))["size"].sum()
    return {
        "rows": len(frame),
        "bytes": int(frame["size"].sum()),
        "columns": list(frame.columns),
        "live": {key: int(value) for key, value in categories.items()},
    }


def of_duckdb(file):
    [(rows, size)] = duckdb.sql(f"SELECT count(*), sum(size) FROM '{file}'").fetchall()
    columns = [column[0] for column in duckdb.sql(f"DESCRIBE SELECT * FROM '{file}'").fetchall()]
    live = {key: int(value) for key, value in duckdb.sql(LIVE.format(file)).fetchall()}
    return {"rows": rows, "bytes": int(size), "columns": columns, "live": live}


def of_pyarrow(file):
    texts = [field.name for field in pyarrow.parquet.read_schema(file) if str(field.type) == "string"]
    table = pyarrow.parquet.read_table(file, read_dictionary=texts)
    assert all(str(table.schema.field(name).type).startswith("dictionary") for name in texts)
    return of_frame(table.to_pandas())


schema = pyarrow.parquet.read_schema(PARQUET)
facts = {key.decode(): value.decode() for key, value in schema.metadata.items()}
print(json.dumps({
    "pandas csv": of_frame(pandas.read_csv(CSV)),
    "duckdb csv": of_duckdb(CSV),
    "pandas parquet": of_frame(pandas.read_parquet(PARQUET)),
    "duckdb parquet": of_duckdb(PARQUET),
    "pyarrow parquet": of_pyarrow(PARQUET),
    "types": {field.name: str(field.type) for field in schema},
    "facts": facts,
}))
