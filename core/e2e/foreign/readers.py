"""Reads one Iceberg table with other engines and compares it with what it must hold.

    readers.py EXPECTED.arrow ENGINE LOCATION NAMESPACE TABLE
    readers.py -          the same, for each line of standard input, a JSON array of the five

ENGINE is pyiceberg-file or duckdb-file (LOCATION: a metadata file), pyiceberg-rest,
duckdb-rest or spark-rest (LOCATION: the URI of a REST catalog), pyiceberg-glue (LOCATION:
the URL of a service that speaks Glue's protocol), arrow-file (LOCATION: an Arrow stream).
Prints a JSON object: rows (how many were read), error (the engine's own), or differs (what
is there and should not be, and the other way round). Spark takes Iceberg's runtime from the
jar that MINK_TEST_ICEBERG_SPARK names.
"""

import datetime
import decimal
import functools
import json
import os
import pathlib
import sys

import pyarrow as pa
import pyarrow.ipc


def plain(v):
    """A value without the differences between engines that say nothing: widths of integers, zones of instants, order of maps."""
    if v is None or isinstance(v, (bool, int, str)):
        return v
    if isinstance(v, float):
        return "f" + repr(v)
    if isinstance(v, decimal.Decimal):
        return "d" + format(v, "f")
    if isinstance(v, (bytes, bytearray)):
        return "x" + v.hex()
    if isinstance(v, datetime.datetime):
        return ("i" + v.astimezone(datetime.timezone.utc).isoformat()) if v.tzinfo else "t" + v.isoformat()
    if isinstance(v, (datetime.date, datetime.time)):
        return "t" + v.isoformat()
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, list) and v and all(isinstance(x, tuple) for x in v):
        return sorted([plain(k), plain(x)] for k, x in v)
    if isinstance(v, list):
        return [plain(x) for x in v]
    raise TypeError(type(v))


def rows(table):
    return sorted(json.dumps(plain(r), sort_keys=True) for r in table.to_pylist())


def duckdb_connection():
    import duckdb

    c = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "httpfs", "iceberg"):  # files of the wheels: nothing is downloaded
        package = __import__("duckdb_extension_" + name)
        file = next(pathlib.Path(package.__file__).parent.glob(f"extensions/*/{name}.duckdb_extension"))
        c.execute(f"LOAD '{file}'")
    return c


@functools.cache
def spark_session():
    from pyspark.sql import SparkSession

    conf = {
        "spark.jars": os.environ["MINK_TEST_ICEBERG_SPARK"],
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[1]")
    for k, v in conf.items():
        builder = builder.config(k, v)
    return builder.getOrCreate()


@functools.cache
def spark_catalog(uri):
    """The name of a Spark catalog for a REST catalog; it keeps no table between queries."""
    name = f"lake{spark_catalog.cache_info().misses}"
    c = f"spark.sql.catalog.{name}"
    for k, v in {
        c: "org.apache.iceberg.spark.SparkCatalog",
        c + ".type": "rest",
        c + ".uri": uri,
        c + ".cache-enabled": "false",
    }.items():
        spark_session().conf.set(k, v)
    return name


def read(engine, location, namespace, name):
    if engine == "spark-rest":
        return spark_session().table(f"{spark_catalog(location)}.`{namespace}`.`{name}`").toArrow()
    if engine == "pyiceberg-file":
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(location).scan().to_arrow()
    if engine == "pyiceberg-rest":
        from pyiceberg.catalog import load_catalog

        return load_catalog("mink", type="rest", uri=location).load_table((namespace, name)).scan().to_arrow()
    if engine == "pyiceberg-glue":
        from pyiceberg.catalog import load_catalog

        options = {"glue.endpoint": location, "glue.region": "us-east-1", "glue.access-key-id": "any", "glue.secret-access-key": "any"}
        return load_catalog("mink", type="glue", **options).load_table((namespace, name)).scan().to_arrow()
    if engine == "arrow-file":
        with pa.OSFile(location) as f:
            return pa.ipc.open_stream(f).read_all()
    c = duckdb_connection()
    if engine == "duckdb-file":
        query = c.execute("SELECT * FROM iceberg_scan(?)", [location])
    elif engine == "duckdb-rest":
        c.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{location}', AUTHORIZATION_TYPE 'none')")
        query = c.execute(f'SELECT * FROM lake."{namespace}"."{name}"')
    else:
        sys.exit("no engine " + engine)
    return query.to_arrow_table()


def main(expected, engine, location, namespace, name):
    with pa.OSFile(expected) as f:
        want = rows(pa.ipc.open_stream(f).read_all())
    try:
        got = rows(read(engine, location, namespace, name))
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}
    if got == want:
        return {"rows": len(got)}
    extra, missing = list(got), []
    for r in want:
        if r in extra:
            extra.remove(r)
        else:
            missing.append(r)
    return {"rows": len(got), "differs": {"extra": extra[:5], "missing": missing[:5]}}


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        for line in sys.stdin:
            print(json.dumps(main(*json.loads(line))), flush=True)
    else:
        print(json.dumps(main(*sys.argv[1:])))
