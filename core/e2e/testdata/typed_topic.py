"""Writes and reads the typed topic of TestTypedTopic with pyarrow alone.

typed_topic.py ADDRESS put   DB.TABLE FIRST END    rows with the ids [FIRST, END)
typed_topic.py ADDRESS check DB.TABLE ROWS SKIPPED rows of the ids [0, ROWS), and the one offset without a row
"""
import datetime as dt
import decimal
import json
import sys

import pyarrow as pa
import pyarrow.flight as fl

SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("price", pa.decimal128(12, 2)),
    ("at", pa.timestamp("ms", tz="UTC")), ("tags", pa.list_(pa.string())), ("sizes", pa.map_(pa.string(), pa.int32())),
])


def utc(*args):
    return dt.datetime(*args, tzinfo=dt.timezone.utc)


def arrow_row(i):
    return {"id": i, "note": "row", "price": decimal.Decimal("%d.50" % i), "at": utc(2026, 1, 31, 7, 5, 0, 123000), "tags": ["x"], "sizes": [("k", i)]}


def want(i):
    if 150 <= i < 170:
        return arrow_row(i)
    if i % 10 == 3:
        return {"id": i, "note": None, "price": None, "at": None, "tags": None, "sizes": None}
    return {
        "id": i, "note": "n %d \u00fc" % i, "price": decimal.Decimal("%d.%02d" % (i, i % 100)),
        "at": utc(2026, 1, 31, 7, i // 60 % 60, i % 60, i % 1000 * 1000), "tags": ["a", None, str(i)], "sizes": [("s", i)],
    }


def main(address, action, table, first, second):
    client = fl.connect(address)
    descriptor = fl.FlightDescriptor.for_path(*table.split("."))
    if action == "put":
        rows = pa.Table.from_pylist([arrow_row(i) for i in range(int(first), int(second))], schema=SCHEMA)
        writer, answers = client.do_put(descriptor, SCHEMA)
        writer.write_table(rows)
        writer.done_writing()
        while answers.read() is not None:
            pass
        writer.close()
        return
    (endpoint,) = client.get_flight_info(descriptor).endpoints
    reader = client.do_get(endpoint.ticket)
    assert reader.schema.names == SCHEMA.names, reader.schema
    for f in SCHEMA:
        t = reader.schema.field(f.name).type
        assert t == f.type or pa.types.is_nested(f.type), (f, t)
    got, skipped = [], []
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            break
        meta = json.loads(chunk.app_metadata.to_pybytes())
        if meta.get("quarantined"):
            assert "whole number" in meta["quarantined"], meta
            skipped.append((meta["base_offset"], meta["last_offset"]))
        chunk.data.validate(full=True)
        got += chunk.data.to_pylist()
    assert skipped == [(int(second), int(second))], skipped
    assert len(got) == int(first), len(got)
    for i, row in enumerate(got):
        assert row == want(i), (row, want(i))


main(*sys.argv[1:])
