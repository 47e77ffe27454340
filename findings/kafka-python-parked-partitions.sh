#!/usr/bin/env bash
# kafka-python 3.0.12: two partitions are paused one after the other, as a consumer does that bounds what it holds, and
# resumed. One is read to its end; of the other, poll() never returns a record again, raises nothing, and logs nothing. The
# client puts aside what it has parsed of a paused partition, takes up one of them, and forgets the rest. librdkafka 2.16.1
# reads all. With Kafka 4.1.1; wants Java 17 and Maven.
#   kafka-python: partition 0 has 1000 of 1000 records, partition 1 has 100 of 1000 records, after 20 s
#   librdkafka: partition 0 has 1000 of 1000 records, partition 1 has 1000 of 1000
set -euo pipefail
folder=$(mktemp -d)
broker=
cleanup() {
  [ -z "$broker" ] || { kill "$broker"; wait "$broker" || true; } 2> /dev/null
  rm -rf "$folder"
}
trap cleanup EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet kafka-python==3.0.12 confluent-kafka==2.16.1
cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>example</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.1.1</version></dependency>
  </dependencies>
</project>
XML
(cd "$folder" && mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=jars)
read -r plain controller < <(python3 -c '
import socket
found = [socket.socket() for _ in range(2)]
for one in found: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in found))')
cat > "$folder/server.properties" <<CONFIG
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$plain,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$plain
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$folder/logs
offsets.topic.replication.factor=1
CONFIG
java -cp "$folder/jars/*" kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c "$folder/server.properties" > "$folder/said" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" >> "$folder/said" 2>&1 &
broker=$!
cat > "$folder/run.py" <<'PYTHON'
import sys
import time

import confluent_kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

BROKER, RECORDS, SECONDS = sys.argv[1], 1_000, 20.0
deadline = time.monotonic() + 60
while True:
    try:
        admin = KafkaAdminClient(bootstrap_servers=BROKER)
        break
    except Exception:  # It is starting.
        if time.monotonic() > deadline:
            raise
        time.sleep(0.5)
admin.create_topics([NewTopic("pages", 2, 1)])
producer = KafkaProducer(bootstrap_servers=BROKER, acks="all")
for partition in (0, 1):
    for number in range(RECORDS):
        producer.send("pages", b"%d" % number, partition=partition)
producer.flush()

first, second = TopicPartition("pages", 0), TopicPartition("pages", 1)
consumer = KafkaConsumer(bootstrap_servers=BROKER, max_poll_records=100)
consumer.assign([first, second])
consumer.seek_to_beginning()
found = {first: 0, second: 0}


def poll(timeout_ms: int) -> set[TopicPartition]:
    records = consumer.poll(timeout_ms=timeout_ms)
    for partition, some in records.items():
        found[partition] += len(some)
    return set(records)


while not found[first] or not found[second]:  # Some of one, then, while that is paused, some of the other.
    consumer.pause(*poll(500))
poll(500)  # Both are paused: nothing comes.
consumer.resume(first, second)
deadline = time.monotonic() + SECONDS
while time.monotonic() < deadline and sum(found.values()) < 2 * RECORDS:
    poll(500)
print("kafka-python:", ", ".join(f"partition {one.partition} has {found[one]} of {RECORDS} records" for one in found))
full, stuck = sorted(found.values(), reverse=True)

other = confluent_kafka.Consumer({"bootstrap.servers": BROKER, "group.id": "g", "auto.offset.reset": "earliest"})
both = [confluent_kafka.TopicPartition("pages", one, confluent_kafka.OFFSET_BEGINNING) for one in (0, 1)]
other.assign(both)
counts = {0: 0, 1: 0}


def consume() -> None:
    for message in other.consume(100, 0.5):
        counts[message.partition()] += 1


while not sum(counts.values()):
    consume()
for one in both:
    other.pause([one])
    consume()
other.resume(both)
deadline = time.monotonic() + SECONDS
while time.monotonic() < deadline and sum(counts.values()) < 2 * RECORDS:
    consume()
print("librdkafka:", ", ".join(f"partition {one} has {count} of {RECORDS} records" for one, count in counts.items()))
assert (full, stuck) == (RECORDS, 100), "it changed"
assert set(counts.values()) == {RECORDS}, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py" "127.0.0.1:$plain"
