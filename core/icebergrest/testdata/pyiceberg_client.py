"""pyiceberg as a client of the REST catalog, and of the same catalog's SQLite file.

Usage: pyiceberg_client.py REST_URI TOKEN SQLITE_FILE. Ends with an exception when
something is not as the specification has it.
"""
import sys
import threading

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

uri, token, sqlite = sys.argv[1:]
rest = load_catalog("mink", type="rest", uri=uri, token=token)


def raises(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind}")


def rows(table):
    return sorted(map(tuple, (r.values() for r in table.scan().to_arrow().to_pylist())))


raises(UnauthorizedError, load_catalog, "mink", type="rest", uri=uri, token="wrong")

# Namespaces.
rest.create_namespace("shop", {"owner": "ann"})
raises(NamespaceAlreadyExistsError, rest.create_namespace, "shop")
raises(NoSuchNamespaceError, rest.load_namespace_properties, "none")
rest.create_namespace(("shop", "eu"))
assert rest.list_namespaces() == [("mink",), ("shop",)], rest.list_namespaces()
assert rest.list_namespaces("shop") == [("shop", "eu")], rest.list_namespaces("shop")
rest.update_namespace_properties("shop", {"owner"}, {"team": "x"})
assert rest.load_namespace_properties("shop") == {"team": "x"}
rest.drop_namespace(("shop", "eu"))

# A table: made, filled, evolved, cut down, read.
arrow = pa.schema([("id", pa.int64()), ("what", pa.string())])
raises(NoSuchNamespaceError, rest.create_table, "none.t", arrow)
orders = rest.create_table("shop.orders", arrow)
raises(TableAlreadyExistsError, rest.create_table, "shop.orders", arrow)
orders.append(pa.table({"id": [1, 2, 3], "what": ["a", "b", "c"]}))
with orders.update_schema() as update:
    update.add_column("n", LongType())
orders.append(pa.table({"id": [4], "what": ["d"], "n": [7]}))
orders.delete(EqualTo("id", 2))
assert rows(rest.load_table("shop.orders")) == [(1, "a", None), (3, "c", None), (4, "d", 7)], rows(orders)
orders.overwrite(pa.table({"id": [3], "what": ["C"], "n": [0]}), overwrite_filter=EqualTo("id", 3))
with orders.transaction() as t:
    t.set_properties({"k": "v"})
    t.append(pa.table({"id": [5], "what": ["e"], "n": [8]}))
assert rest.load_table("shop.orders").properties["k"] == "v"
assert [r[0] for r in rows(rest.load_table("shop.orders"))] == [1, 3, 4, 5]

# Partitioned, with names and values that not every file system takes as they are.
spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "Land"))
places = rest.create_table("shop.Places", Schema(NestedField(1, "id", LongType()), NestedField(2, "Land", StringType())), partition_spec=spec)
places.append(pa.table({"id": [1, 2, 3], "Land": ["DE", "Ñ/x", None]}))
assert [r[0] for r in rows(rest.load_table("shop.Places"))] == [1, 2, 3]

# Two that planned on the same state: one wins, the other is told.
one, two = rest.load_table("shop.orders"), rest.load_table("shop.orders")
with one.update_schema() as update:
    update.add_column("by_one", LongType())


def by_two():
    with two.update_schema() as update:
        update.add_column("by_two", LongType())


raises(CommitFailedException, by_two)

# Writers at once lose no row and double none: each tries again after a conflict.
acknowledged, lock = [], threading.Lock()
counter = rest.create_table("shop.counter", pa.schema([("id", pa.int64())]))


def writer(number):
    for i in range(5):
        value = number * 100 + i
        while True:
            try:
                rest.load_table("shop.counter").append(pa.table({"id": [value]}))
                break
            except CommitFailedException:
                pass
        with lock:
            acknowledged.append((value,))


threads = [threading.Thread(target=writer, args=(n,)) for n in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert len(acknowledged) == 15 and rows(rest.load_table("shop.counter")) == sorted(acknowledged), (acknowledged, rows(counter))

# Staged creation.
with rest.create_table_transaction("shop.staged", arrow) as t:
    t.append(pa.table({"id": [1], "what": ["x"]}))
assert rows(rest.load_table("shop.staged")) == [(1, "x")]

# Mink's tables are guarded.
raises(BadRequestError, rest.create_table, "shop.fake", arrow, properties={"mink.table-id": "7"})
guarded = rest.load_table("mink.events")
raises(BadRequestError, rest.drop_table, "mink.events")
raises(BadRequestError, rest.rename_table, "mink.events", "mink.other")


def drop_column():
    with guarded.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")


raises(BadRequestError, drop_column)
guarded.append(pa.table({"id": pa.array([1], pa.int64())}, schema=guarded.schema().as_arrow()))

# The same tables through the SQLite file.
sql = load_catalog("mink", type="sql", uri=f"sqlite:///{sqlite}")
assert sorted(sql.list_tables("shop")) == sorted(rest.list_tables("shop")), (sql.list_tables("shop"), rest.list_tables("shop"))
assert sql.load_namespace_properties("shop") == {"team": "x"}
assert rows(sql.load_table("shop.staged")) == [(1, "x")]
sql.load_table("shop.staged").append(pa.table({"id": [2], "what": ["y"]}))
assert rows(rest.load_table("shop.staged")) == [(1, "x"), (2, "y")]

# Names, and the end.
rest.rename_table("shop.staged", "shop.renamed")
raises(NoSuchTableError, rest.load_table, "shop.staged")
assert rows(rest.load_table("shop.renamed")) == [(1, "x"), (2, "y")]
location = rest.load_table("shop.renamed").metadata_location
rest.drop_table("shop.renamed")
assert rows(rest.register_table("shop.again", location)) == [(1, "x"), (2, "y")]
raises(NamespaceNotEmptyError, rest.drop_namespace, "shop")
for name in ("again", "orders", "counter", "Places"):
    rest.purge_table(f"shop.{name}")
    raises(NoSuchTableError, rest.load_table, f"shop.{name}")
rest.drop_namespace("shop")
print("pyiceberg is content")
