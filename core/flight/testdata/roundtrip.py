"""Writes and reads tables with pyarrow.flight alone, as docs/flight.md shows it."""
import datetime
import json
import sys

import pyarrow as pa
import pyarrow.flight as fl

client = fl.connect(sys.argv[1])


def read(descriptor):
    info = client.get_flight_info(descriptor)
    tables = []
    for endpoint in info.endpoints:
        where = fl.connect(endpoint.locations[0])
        tables.append(where.do_get(endpoint.ticket).read_all())
    return pa.concat_tables(tables), info


# Table-addressed write: columns by name, in any order.
rows = pa.table({
    "word": pa.array(["a", None, "c"] * 1000),
    "id": pa.array(range(3000), pa.int64()),
    "tags": pa.array([["x", "y"], [], None] * 1000, pa.list_(pa.string())),
    "at": pa.array([datetime.datetime(2026, 1, 31, 7, 5)] * 3000, pa.timestamp("us")),
})
path = fl.FlightDescriptor.for_path("db", "t")
writer, results = client.do_put(path, rows.schema)
writer.write_table(rows, max_chunksize=500)
writer.done_writing()
taken = 0
while (m := results.read()) is not None:
    r = json.loads(m.to_pybytes())
    taken += r["rows"]
    assert all("error" not in b for b in r["buckets"]), r
writer.close()
assert taken == 3000, taken

back, info = read(path)
assert info.total_records == 3000, info.total_records
assert info.schema.names == ["id", "word", "at", "tags"], info.schema
assert back.num_rows == 3000
back = back.sort_by("id").select(rows.schema.names)
assert back.to_pylist() == rows.to_pylist()

# Projection and a start, by a command.
names, _ = read(fl.FlightDescriptor.for_command(json.dumps({"table": "db.t", "columns": ["word"], "from": "earliest"})))
assert names.column_names == ["word"] and names.num_rows == 3000

# Nobody reads the results: nothing stops, and errors come with close().
writer, _ = client.do_put(fl.FlightDescriptor.for_path("db", "one"), pa.schema([("id", pa.int64()), ("name", pa.string())]))
for i in range(2000):
    writer.write_batch(pa.record_batch([pa.array([i], pa.int64()), pa.array(["n"])], names=["id", "name"]))
writer.close()
writer, _ = client.do_put(fl.FlightDescriptor.for_path("db", "one"), pa.schema([("id", pa.int64()), ("name", pa.string())]))
try:
    writer.write_batch(pa.record_batch([pa.array([None], pa.int64()), pa.array(["n"])], names=["id", "name"]))
    writer.close()
    raise SystemExit("a null in a NOT NULL column was taken")
except pa.ArrowInvalid as e:
    assert "id" in str(e), e

# One big batch is written in parts; compressed bodies are taken as well.
big = pa.table({"id": pa.array(range(400000), pa.int64()), "name": pa.array(["some text"] * 400000)})
writer, _ = client.do_put(fl.FlightDescriptor.for_path("db", "one"), big.schema,
                          options=fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd")))
writer.write_table(big)
writer.close()
one, info = read(fl.FlightDescriptor.for_path("db", "one"))
assert one.num_rows == 402000 and info.total_records == 402000, one.num_rows
assert one.column("id").slice(2000).to_pylist() == list(range(400000))

# A tail: rows, their metadata, and an orderly end.
bucket = json.loads(info.endpoints[0].app_metadata)["bucket"]
ticket = json.dumps({"scan": {"bucket": bucket, "from": 401999}})
writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(ticket))
writer.write_metadata(b"{}")
chunk = reader.read_chunk()
assert chunk.data.num_rows == 1 and json.loads(chunk.app_metadata.to_pybytes())["next_offset"] == 402000
writer.done_writing()
try:
    reader.read_chunk()
    raise SystemExit("rows after the end")
except StopIteration:
    pass

# Actions and errors.
actions = {a.type for a in client.list_actions()}
assert "create_table" in actions and len(actions) == 24, actions
health = json.loads(next(client.do_action(fl.Action("health", b""))).body.to_pybytes())
assert health["ready"] is True, health
assert [f.descriptor.path for f in client.list_flights()] == [[b"db", b"one"], [b"db", b"t"]]
try:
    client.get_flight_info(fl.FlightDescriptor.for_path("db", "nope"))
    raise SystemExit("a table that is not there was found")
except KeyError as e:
    assert "nope" in str(e), e
print("pyarrow", pa.__version__, "ok")
