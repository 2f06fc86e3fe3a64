"""Another engine at a node's Iceberg catalog: PyIceberg.

    lake.py URI ACCESS_KEY SECRET_KEY COMMAND [, COMMAND]...

A comma is an argument of its own. Commands:

    rows TABLE COLUMN...   prints the rows, a line each, columns joined by slashes
    append TABLE VALUE     appends a row to a topic's table
    property TABLE VALUE   sets a property
    nothing TABLE          appends no rows: a snapshot all the same
    expire TABLE           expires all snapshots but the newest and those that the catalog keeps for readers, prints how many

A line with a comma ends what a command prints. A commit that another one was faster than, or whose files the store did not take, is made again.
"""

import datetime
import re
import sys
import time

import pyarrow as pa
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException

TRIES = 30


def text(v):
    return v.decode() if isinstance(v, bytes) else str(v)


def commit(catalog, name, change):
    for i in range(TRIES):
        table = catalog.load_table(name)
        try:
            return change(table)
        except (CommitFailedException, OSError) as e:
            # The store did not take a file, before the commit: nothing has changed. An
            # answer of the catalog that is lost is another thing: it may have.
            if i == TRIES - 1 or isinstance(e, requests.RequestException):
                raise
            time.sleep(0.1)


def append(value):
    def change(table):
        row = {"key": None, "value": value.encode(), "headers": [], "timestamp": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))

    return change


def property_of(value):
    def change(table):
        with table.transaction() as tx:
            tx.set_properties({"outside.engine": value})

    return change


def nothing(table):
    table.append(table.schema().as_arrow().empty_table())


def expire(table):
    ids = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != table.metadata.current_snapshot_id]
    while ids:
        try:
            table.maintenance.expire_snapshots().by_ids(ids).commit()
            break
        except BadRequestError as e:
            kept = re.search(r"snapshot (\d+)", str(e))
            if not kept:
                raise
            ids.remove(int(kept[1]))
    print(len(ids))


def main(catalog, what, name, *args):
    if what == "rows":
        rows = catalog.load_table(name).scan(selected_fields=args).to_arrow().select(list(args)).to_pylist()
        sys.stdout.write("".join("/".join(text(r[c]) for c in args) + "\n" for r in rows))
    elif what == "append":
        commit(catalog, name, append(*args))
    elif what == "property":
        commit(catalog, name, property_of(*args))
    elif what == "nothing":
        commit(catalog, name, nothing)
    elif what == "expire":
        commit(catalog, name, expire)
    else:
        sys.exit("no such thing: " + what)
    print(",")


uri, key, secret, *rest = sys.argv[1:]
catalog = load_catalog("mink", **{"type": "rest", "uri": uri, "s3.access-key-id": key, "s3.secret-access-key": secret, "s3.region": "us-east-1"})
while rest:
    end = rest.index(",") if "," in rest else len(rest)
    main(catalog, *rest[:end])
    rest = rest[end + 1 :]
