#!/usr/bin/env bash
# kafka-python 3.0.12: partitions are added to a topic while a consumer runs. Asked for the ends of one that it knows and one
# that it has not heard of yet, end_offsets() raises a bare KeyError, no Kafka error. Asked for the new one alone, it asks the
# broker for metadata and answers. With Kafka 4.1.1; wants Java 17 and Maven.
#   partitions 0 and 1: KeyError TopicPartition(topic='pages', partition=1)
#   partition 1 alone: {TopicPartition(topic='pages', partition=1): 0}
set -euo pipefail
folder=$(mktemp -d)
broker=
cleanup() {
  [ -z "$broker" ] || { kill "$broker"; wait "$broker" || true; } 2> /dev/null
  rm -rf "$folder"
}
trap cleanup EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet kafka-python==3.0.12
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

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewPartitions, NewTopic

BROKER = sys.argv[1]
deadline = time.monotonic() + 60
while True:
    try:
        admin = KafkaAdminClient(bootstrap_servers=BROKER)
        break
    except Exception:  # It is starting.
        if time.monotonic() > deadline:
            raise
        time.sleep(0.5)
admin.create_topics([NewTopic("pages", 1, 1)])
admin.wait_for_topics(["pages"])
both = [TopicPartition("pages", number) for number in (0, 1)]
first, second = (KafkaConsumer(bootstrap_servers=BROKER) for _ in range(2))
for one in (first, second):
    assert one.end_offsets(both[:1]) == {both[0]: 0}
admin.create_partitions({"pages": NewPartitions(2)})
deadline = time.monotonic() + 60
while KafkaConsumer(bootstrap_servers=BROKER).partitions_for_topic("pages") != {0, 1}:  # New ones see both.
    assert time.monotonic() < deadline
raised = None
try:
    first.end_offsets(both, timeout_ms=10_000)
except KeyError as error:
    raised = error
print("partitions 0 and 1:", type(raised).__name__, raised)
alone = second.end_offsets(both[1:], timeout_ms=10_000)
print("partition 1 alone:", alone)
assert isinstance(raised, KeyError) and alone == {both[1]: 0}, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py" "127.0.0.1:$plain"
