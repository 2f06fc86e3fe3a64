"""Asks another engine for the demo's question: DuckDB with its iceberg extension, else PyIceberg.

    read_lake.py METADATA_FILE

Prints {"reader": NAME, "rows": [[weather, days, warmest], ...]}; exit code 3: neither is
installed. Nothing is downloaded.
"""

import json
import pathlib
import sys

QUERY = "SELECT weather, count(*) AS days, max(temp_max) AS warmest FROM iceberg_scan(?) GROUP BY ALL ORDER BY ALL"


def load(connection, name):
    """Loads an extension that DuckDB or a wheel has installed."""
    import duckdb

    try:
        connection.execute(f"LOAD {name}")
    except duckdb.Error:
        package = __import__("duckdb_extension_" + name)
        file = next(pathlib.Path(package.__file__).parent.glob(f"extensions/*/{name}.duckdb_extension"))
        connection.execute(f"LOAD '{file}'")


def by_duckdb(metadata):
    import duckdb

    c = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    for name in ("avro", "iceberg"):
        load(c, name)
    return "DuckDB " + duckdb.__version__, c.execute(QUERY, [metadata]).fetchall()


def by_pyiceberg(metadata):
    import pyiceberg
    from pyiceberg.table import StaticTable

    t = StaticTable.from_metadata(metadata).scan(selected_fields=("weather", "temp_max")).to_arrow()
    groups = t.group_by("weather").aggregate([([], "count_all"), ("temp_max", "max")]).sort_by("weather")
    return "PyIceberg " + pyiceberg.__version__, [(r["weather"], r["count_all"], r["temp_max_max"]) for r in groups.to_pylist()]


def main(metadata):
    for reader in (by_duckdb, by_pyiceberg):
        try:
            name, rows = reader(metadata)
        except (ImportError, StopIteration):
            continue
        print(json.dumps({"reader": name, "rows": rows}))
        return 0
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
