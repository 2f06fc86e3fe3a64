"""Writes pyarrow-*.stream: what pyarrow sends, for TestPyarrow. Run it here."""
import datetime
import decimal
import pyarrow as pa

item = pa.struct([("key", pa.string()), ("value", pa.binary())])
schema = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("b", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("f32", pa.float32()), ("f64", pa.float64()),
    ("dec", pa.decimal128(20, 2)), ("text", pa.string()), ("fsb", pa.binary(3)), ("bytes", pa.binary()), ("date", pa.date32()),
    ("time", pa.time32("ms")), ("time64", pa.time64("us")), ("ts", pa.timestamp("ms", "UTC")), ("list", pa.list_(pa.string())),
    ("map", pa.map_(pa.string(), pa.int32())), ("headers", pa.list_(item)), ("row", pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())])),
])


def value(name, i):
    t = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(seconds=i)
    return {
        "id": i, "b": i % 3 == 0, "i8": i % 100, "i16": i, "i32": i, "f32": i / 2, "f64": i / 3, "dec": decimal.Decimal(i) / 4,
        "text": "tëxt €%d" % i, "fsb": b"%03d" % (i % 1000), "bytes": b"\xff\x00" * (i % 5), "date": t.date(), "time": t.time(),
        "time64": t.time(), "ts": t, "list": ["a", None, "ü"][: i % 4], "map": [("k%d" % k, k) for k in range(i % 3)],
        "headers": [{"key": "h", "value": None if i % 2 else b"v"}] * (i % 3), "row": {"x": i, "y": None if i % 2 else "y"},
    }[name]


def rows(lo, hi, nulls):
    cols = []
    for f in schema:
        cols.append(pa.array([None if nulls and f.nullable and (i + len(f.name)) % nulls == 0 else value(f.name, i) for i in range(lo, hi)], f.type))
    return pa.record_batch(cols, schema=schema)


batches = [rows(0, 0, 0), rows(0, 1, 0), rows(0, 20, 4), rows(0, 100, 1), rows(0, 100, 7).slice(13, 30), rows(0, 300, 0), rows(0, 64, 3)]
for codec in ("none", "lz4", "zstd"):
    options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
    with pa.OSFile("pyarrow-%s.stream" % codec, "wb") as out, pa.ipc.new_stream(out, schema, options=options) as w:
        for b in batches:
            w.write_batch(b, custom_metadata={"from": "pyarrow", "empty": ""})
