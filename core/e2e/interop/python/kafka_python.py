"""kafka-python in the interop matrix. ../README.md has the contract."""

import json
import sys
import time

from kafka import KafkaConsumer, KafkaProducer

NAME = "kafka-python"
USAGE = "want: produce BROKER TOPIC FROM N CODEC, or consume BROKER TOPIC GROUP N"


def record(i):
    """Key, value and headers of record i; None is absent."""
    key, value = f"k{i % 97}".encode(), f"{i}-{'x' * (i % 200)}".encode()
    if i % 100 == 50:
        key, value = f"t{i}".encode(), None
    elif i % 10 == 9:
        key = None
    return key, value, [("client", NAME.encode()), ("n", str(i).encode())]


def produce(broker, topic, start, n, codec):
    options = {} if codec == "default" else {"compression_type": codec}
    producer = KafkaProducer(bootstrap_servers=broker, **options)
    sent = []
    for i in range(int(start), int(start) + int(n)):
        key, value, headers = record(i)
        sent.append(producer.send(topic, key=key, value=value, headers=headers))
    producer.flush()
    for s in sent:
        s.get(timeout=60)
    producer.close()


def consume(broker, topic, group, n):
    consumer = KafkaConsumer(
        topic, bootstrap_servers=broker, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    lines, deadline = [], time.monotonic() + 120
    while len(lines) < int(n):
        if time.monotonic() > deadline:
            sys.exit(f"{NAME}: {len(lines)} of {n} records within two minutes")
        for records in consumer.poll(timeout_ms=1000).values():
            for r in records:
                lines.append(line(r))
    consumer.commit()
    consumer.close()
    sys.stdout.write("".join(lines))


def line(r):
    text = {"key": r.key and r.key.decode(), "payload": r.value and r.value.decode()}
    headers = [s for k, v in r.headers for s in (k, v.decode())]
    return json.dumps({"partition": r.partition, "offset": r.offset, **text, "headers": headers}) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", broker, topic, start, n, codec]:
            produce(broker, topic, start, n, codec)
        case ["consume", broker, topic, group, n]:
            consume(broker, topic, group, n)
        case _:
            sys.exit(USAGE)
