"""Reads and writes a topic's table, the four columns, with pyarrow alone.

topic_rows.py ADDRESS put  DB.TABLE CODEC   JSON lines on standard input become one batch
topic_rows.py ADDRESS read DB.TABLE         prints a JSON line per row, and one per range that was skipped

A row: {"offset", "key", "value", "headers": [[key, value], ...], "timestamp"}; bytes
are base64, timestamps ms since 1970, anything may be null.
"""
import base64
import json
import sys

import pyarrow as pa
import pyarrow.flight as fl

SCHEMA = pa.schema([
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ("timestamp", pa.timestamp("ms", tz="UTC")),
])


def dec(s):
    return None if s is None else base64.b64decode(s)


def enc(b):
    return None if b is None else base64.b64encode(b).decode()


def put(client, descriptor, codec):
    rows = [json.loads(line) for line in sys.stdin]
    batch = pa.RecordBatch.from_arrays([
        pa.array([dec(r["key"]) for r in rows], pa.binary()),
        pa.array([dec(r["value"]) for r in rows], pa.binary()),
        pa.array([r["headers"] and [{"key": k, "value": dec(v)} for k, v in r["headers"]] for r in rows], SCHEMA.field("headers").type),
        pa.array([r["timestamp"] for r in rows], pa.timestamp("ms", tz="UTC")),
    ], schema=SCHEMA)
    options = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec))
    writer, answers = client.do_put(descriptor, SCHEMA, options)
    writer.write_batch(batch)
    writer.done_writing()
    while (answer := answers.read()) is not None:
        print(answer.to_pybytes().decode())
    writer.close()


def read(client, descriptor):
    (endpoint,) = client.get_flight_info(descriptor).endpoints
    reader = client.do_get(endpoint.ticket)
    assert reader.schema.names == SCHEMA.names, reader.schema
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        meta = json.loads(chunk.app_metadata.to_pybytes())
        if meta.get("quarantined"):
            print(json.dumps({"skipped": [meta["base_offset"], meta["last_offset"]], "why": meta["quarantined"]}))
        batch = chunk.data
        stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for i, r in enumerate(batch.select(["key", "value", "headers"]).to_pylist()):
            print(json.dumps({
                "offset": meta["base_offset"] + i, "key": enc(r["key"]), "value": enc(r["value"]),
                "headers": [[h["key"], enc(h["value"])] for h in r["headers"] or []], "timestamp": stamps[i],
            }))


def main(address, action, table, *rest):
    client = fl.connect(address)
    descriptor = fl.FlightDescriptor.for_path(*table.split("."))
    {"put": put, "read": read}[action](client, descriptor, *rest)
    client.close()


main(*sys.argv[1:])
