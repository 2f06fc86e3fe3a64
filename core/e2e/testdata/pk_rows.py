"""Upserts, partial updates, deletes, lookups, snapshots and changelogs of a
primary-key table with pyarrow.flight alone.

    pk_rows.py URL write TABLE ROUND   changes rows; prints nothing
    pk_rows.py URL check TABLE ROUNDS  everything is as the rounds so far left it
"""
import json
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.flight as fl

url, what, table, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
client = fl.connect(url)
ROWS = 3000
COLUMNS = {"shop": pa.string(), "id": pa.int64(), "item": pa.string(), "price": pa.decimal128(10, 2), "pieces": pa.int32()}
KEY = ["shop", "id"]


def command(**body):
    return fl.FlightDescriptor.for_command(json.dumps(body))


def arrow(rows, columns):
    return pa.table({c: pa.array([r[c] for r in rows], COLUMNS[c]) for c in columns})


def put(descriptor, t):
    writer, _ = client.do_put(descriptor, t.schema)
    writer.write_table(t, max_chunksize=700)
    writer.close()


def read(descriptor):
    info = client.get_flight_info(descriptor)
    return [row for e in info.endpoints for row in fl.connect(e.locations[0]).do_get(e.ticket).read_all().to_pylist()]


def action(name, **body):
    return json.loads(next(client.do_action(fl.Action(name, json.dumps(body).encode()))).body.to_pybytes())


def steps(k):
    """What round k does: (kind, rows), in order."""
    def key(i):
        return {"shop": f"shop {i % 7}", "id": i}
    upserts = [key(i) | {"item": f"item {i} of {k}", "price": Decimal(i) / 4 if i % 3 else None, "pieces": k} for i in range(k * 500, k * 500 + ROWS)]
    partial = [key(i) | {"pieces": 1000 + i, "item": "not a target"} for i in range(0, k * 500 + ROWS, 5)]
    deletes = [key(i) for i in range(k * 500, k * 500 + ROWS + 20, 11)]
    return [("upsert", upserts), ("partial", partial), ("delete", deletes)]


def expected(rounds):
    state = {}
    for k in range(rounds):
        for kind, rows in steps(k):
            for r in rows:
                at = tuple(r[c] for c in KEY)
                if kind == "delete":
                    state.pop(at, None)
                elif kind == "upsert":
                    state[at] = dict(r)
                else:
                    old = state.get(at, {c: r.get(c) if c in KEY else None for c in COLUMNS})
                    state[at] = old | {"pieces": r["pieces"]}
    return state


def by_key(rows):
    out = {tuple(r[c] for c in KEY): {c: r[c] for c in COLUMNS} for r in rows}
    assert len(out) == len(rows), f"{len(rows)} rows of {len(out)} keys"
    return out


def same(got, want, name):
    assert got.keys() == want.keys(), (name, sorted(got.keys() ^ want.keys())[:5])
    for k, row in want.items():
        assert got[k] == row, (name, k, got[k], row)


def write():
    (_, upserts), (_, partial), (_, deletes) = steps(n)
    put(fl.FlightDescriptor.for_path(*table.split(".")), arrow(upserts, ["price", "id", "item", "shop", "pieces"]))
    put(command(table=table, columns=["pieces"]), arrow(partial, ["shop", "id", "item", "pieces"]))
    put(command(table=table, delete=True), arrow(deletes, KEY))


def check():
    want = expected(n)
    same(by_key(read(fl.FlightDescriptor.for_path(*table.split(".")))), want, "snapshot")
    assert action("count", table=table)["rows"] == len(want)

    # The changelog from its begin makes the same rows, and no change is without a cause.
    state = {}
    for r in read(command(table=table, mode="log", meta=True)):
        at, row = tuple(r[c] for c in KEY), {c: r[c] for c in COLUMNS}
        if r["__change"] in ("-U", "-D"):
            assert state.pop(at) == row, (r, row)
        else:
            assert at not in state, r
            state[at] = row
    same(state, want, "changelog")

    # Lookups, of a few and of many.
    keys = sorted(want)[:5] + [("nowhere", 1)]
    found = action("lookup", table=table, keys=[dict(zip(KEY, k)) for k in keys], columns=["item"])
    assert found["missing"] == [len(keys) - 1] and found["rows"][-1] is None, found
    assert [r["item"] for r in found["rows"][:-1]] == [want[k]["item"] for k in keys[:-1]], found
    ask = [(f"shop {i % 7}", i) for i in range(0, 6000, 3)]
    sender, reader = client.do_exchange(command(lookup={"table": table}))
    batches = [ask[i:i + 256] for i in range(0, len(ask), 256)]
    sender.begin(pa.schema([("shop", pa.string()), ("id", pa.int64())]))
    for b in batches:
        sender.write_batch(pa.record_batch({"shop": [k[0] for k in b], "id": pa.array([k[1] for k in b], pa.int64())}))
    for b in batches:
        chunk = reader.read_chunk()
        missing = json.loads(chunk.app_metadata.to_pybytes()).get("missing", [])
        assert missing == [i for i, k in enumerate(b) if k not in want], missing
        assert chunk.data.to_pylist() == [want[k] for k in b if k in want]
    sender.done_writing()

    # A prefix, and a range of one bucket with what came behind it.
    rows = action("prefix_lookup", table=table, prefix={"shop": "shop 3"}, columns=["id"], limit=10)["rows"]
    assert [r["id"] for r in rows] == sorted(k[1] for k in want if k[0] == "shop 3")[:10], rows
    for e in client.get_flight_info(fl.FlightDescriptor.for_path(*table.split("."))).endpoints:
        bucket = json.loads(e.app_metadata)["bucket"]
        chunk = client.do_get(fl.Ticket(json.dumps({"range": {"bucket": bucket, "from": {"shop": "shop 2"}, "to": {"shop": "shop 5", "id": 100}}}).encode())).read_all()
        got = [tuple(r[c] for c in KEY) for r in chunk.to_pylist()]
        assert got == sorted(got) and all(("shop 2",) <= k < ("shop 5", 100) for k in got), got[:3]


{"write": write, "check": check}[what]()
