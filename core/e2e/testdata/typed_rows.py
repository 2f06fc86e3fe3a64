"""Writes and reads typed rows with pyarrow alone; it knows nothing of Mink.

typed_rows.py ADDRESS put   DB.TABLE SOURCE FIRST END [CODEC]   rows [FIRST, END) of the source
typed_rows.py ADDRESS check DB.TABLE SOURCE                     every row is there, in order, with its type
typed_rows.py ADDRESS set   DB.TABLE SOURCE KEY                 the same, rows in any order, by a unique column

SOURCE is "types" (rows of every type, made here) or a CSV file that this script
has columns for. CODEC is zstd or lz4: the IPC messages are compressed.
"""
import datetime as dt
import decimal
import os
import sys

import pyarrow as pa
import pyarrow.csv
import pyarrow.flight as fl

CSV = {
    "airports.csv": {
        "iata": pa.string(), "name": pa.string(), "city": pa.string(), "state": pa.string(),
        "country": pa.string(), "latitude": pa.float64(), "longitude": pa.decimal128(12, 8),
    },
    "seattle-weather.csv": {
        "date": pa.date32(), "precipitation": pa.float64(), "temp_max": pa.decimal128(5, 1),
        "temp_min": pa.float32(), "wind": pa.float64(), "weather": pa.string(),
    },
}

TYPES = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("yes", pa.bool_()),
    ("tiny", pa.int8()),
    ("small", pa.int16()),
    ("number", pa.int32()),
    ("real", pa.float32()),
    ("double", pa.float64()),
    ("money", pa.decimal128(20, 4)),
    ("huge", pa.decimal128(38, 0)),
    ("code", pa.string()),
    ("text", pa.string()),
    ("fixed", pa.binary(4)),
    ("bytes", pa.binary()),
    ("day", pa.date32()),
    ("clock_s", pa.time32("s")),
    ("clock_ns", pa.time64("ns")),
    ("at_s", pa.timestamp("s")),
    ("at_ms", pa.timestamp("ms")),
    ("at_us", pa.timestamp("us")),
    ("at_ns", pa.timestamp("ns")),
    ("instant", pa.timestamp("us", tz="UTC")),
    ("words", pa.list_(pa.string())),
    ("counts", pa.map_(pa.string(), pa.int32())),
    ("place", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.struct([("k", pa.string()), ("v", pa.float64())])))])),
])


def types_row(i):
    if i % 7 == 3:
        return {"id": i}  # all the others are null
    t = dt.datetime(1969 + i % 200, 1 + i % 12, 1 + i % 28, i % 24, i % 60, i % 60)
    return {
        "id": i,
        "yes": i % 2 == 0,
        "tiny": i % 256 - 128,
        "small": (i * 37) % 65536 - 32768,
        "number": (i * 7919) % 2**32 - 2**31,
        "real": i / 8,
        "double": float("inf") if i % 50 == 1 else (i * 1.1) ** 3,
        "money": decimal.Decimal(i * 10007 - 5000000).scaleb(-4),
        "huge": decimal.Decimal(10) ** 37 * (-1) ** i + i,
        "code": "%08d" % i,
        "text": "" if i % 11 == 0 else "gr\u00fc\u00df dich \u4e16\u754c \U0001f9a6 " * (i % 5) + str(i),
        "fixed": i.to_bytes(4, "big"),
        "bytes": bytes(range(i % 256)),
        "day": t.date(),
        "clock_s": t.time(),
        "clock_ns": (i * 1234567890123) % (24 * 3600 * 10**9),
        "at_s": t,
        "at_ms": t + dt.timedelta(milliseconds=i % 1000),
        "at_us": t + dt.timedelta(microseconds=i % 1000000),
        "at_ns": i * 1_000_000_007,
        "instant": (t + dt.timedelta(microseconds=i)).replace(tzinfo=dt.timezone.utc),
        "words": None if i % 13 == 0 else [None if j == 2 else "w%d" % j for j in range(i % 6)],
        "counts": [("k%d" % j, None if j == 1 else i + j) for j in range(i % 4)],
        "place": None if i % 17 == 0 else {"x": i, "tags": [{"k": "a" * (i % 3), "v": None}, None, {"k": None, "v": i / 3}][: i % 4]},
    }


def source(name):
    if name == "types":
        return pa.Table.from_pylist([types_row(i) for i in range(1500)], schema=TYPES)
    columns = CSV[os.path.basename(name)]
    options = pa.csv.ConvertOptions(column_types=columns, strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=False)
    return pa.csv.read_csv(name, convert_options=options)


def put(client, descriptor, rows, codec):
    options = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=codec))
    writer, answers = client.do_put(descriptor, rows.schema, options)
    writer.write_table(rows, max_chunksize=400)
    writer.done_writing()
    while answers.read() is not None:
        pass
    writer.close()


def get(client, descriptor):
    info = client.get_flight_info(descriptor)
    parts = [client.do_get(e.ticket).read_all() for e in info.endpoints]
    table = pa.concat_tables(parts)
    assert info.total_records in (-1, table.num_rows), (info.total_records, table.num_rows)
    assert info.schema.equals(client.get_schema(descriptor).schema), "GetFlightInfo and GetSchema differ"
    assert table.schema.equals(info.schema), "DoGet and GetFlightInfo differ"
    listed = [f for f in client.list_flights() if f.descriptor.path == descriptor.path]
    assert len(listed) == 1, "ListFlights has the table %d times" % len(listed)
    return table


def check(got, want):
    assert got.num_rows == want.num_rows, "%d rows came back, %d went in" % (got.num_rows, want.num_rows)
    assert got.column_names == want.column_names, got.column_names
    for f in want.schema:  # nested fields may be called "element" instead of "item"
        t = got.schema.field(f.name).type
        assert t == f.type or pa.types.is_nested(f.type), (f, t)
    got = got.cast(pa.schema([f.with_nullable(got.schema.field(f.name).nullable) for f in want.schema]))
    for name in want.column_names:
        a, b = got.column(name).combine_chunks(), want.column(name).combine_chunks()
        if not a.equals(b):
            i = next(i for i in range(len(a)) if a[i] != b[i])
            raise AssertionError("column %s, row %d: %r came back, %r went in" % (name, i, a[i], b[i]))
    for batch in got.to_batches():
        batch.validate(full=True)


def main(address, action, table, name, *rest):
    client = fl.connect(address)
    descriptor = fl.FlightDescriptor.for_path(*table.split("."))
    rows = source(name)
    if action == "put":
        first, end = int(rest[0]), int(rest[1])
        put(client, descriptor, rows.slice(first, end - first), rest[2] if len(rest) > 2 else None)
    elif action == "check":
        check(get(client, descriptor), rows)
    elif action == "set":
        check(get(client, descriptor).sort_by(rest[0]), rows.sort_by(rest[0]))
    else:
        raise SystemExit("unknown action " + action)
    client.close()


main(*sys.argv[1:])
