#!/usr/bin/env bash
# Nine Kafka clients against one node: core/e2e/interop/README.md. Builds them
# under .cache/interop with the package clients that are there, runs the matrix and
# prints it. A client that cannot be built is named and left out, or fails the run
# when MINK_TEST_NOTHING_LEFT_OUT is set.
#   CLIENTS="kcat java"    only these clients
#   BROKER=HOST:PORT       another broker in place of a node (topics of 4 partitions by default)
set -euo pipefail
cd "$(dirname "$0")/.."

[ -x bin/mink ] || { echo "interop needs bin/mink: run make build"; exit 1; }
sources=$PWD/core/e2e/interop
cache=$PWD/.cache/interop
mkdir -p "$cache/bin"
: >"$cache/clients"
left_out=()

# client NAME COMMAND: the command line that the test runs.
client() {
	case " ${CLIENTS:-$1} " in *" $1 "*) printf '%s\t%s\n' "$1" "$2" >>"$cache/clients" ;; esac
}

# build WHAT FUNCTION: sets built; a failure leaves its clients out. Not for the
# condition of an if: bash ignores -e in there.
build() {
	set +e
	(set -euo pipefail; "$2") >"$cache/$1.log" 2>&1
	built=$?
	set -e
	if [ $built != 0 ]; then left_out+=("$1: $(grep -v "complete log" "$cache/$1.log" | tail -n 1) (all of it: .cache/interop/$1.log)"); fi
}

# fresh STAMP FILE...: the files are those of the last build.
fresh() { [ "$(cat "$1" 2>/dev/null)" = "$(cat "${@:2}" | sha256sum)" ]; }
stamp() { cat "${@:2}" | sha256sum >"$1"; }

go_clients() {
	cd "$sources/go"
	go vet "$@"
	go build -o "$cache/bin/" "$@"
}
build_go() { CGO_ENABLED=0 go_clients ./franz ./sarama ./segmentio ./moving; }
build_confluent() { CGO_ENABLED=1 go_clients ./confluent; }
build_js() {
	mkdir -p "$cache/js"
	cp "$sources"/js/* "$cache/js/"
	cd "$cache/js"
	fresh .stamp package-lock.json && return
	rm -rf node_modules .stamp
	npm ci --ignore-scripts --no-audit --no-fund
	stamp .stamp package-lock.json
}
build_python() {
	local venv=$cache/venv
	fresh "$venv/.stamp" "$sources/python/requirements.txt" && return
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$sources/python/requirements.txt"
	stamp "$venv/.stamp" "$sources/python/requirements.txt"
}
build_java() {
	mkdir -p "$cache/java"
	cd "$cache/java"
	fresh .stamp "$sources"/java/* && return
	rm -rf lib classes .stamp
	mvn -B -q -f "$sources/java/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/lib"
	javac -cp 'lib/*' -d classes "$sources/java/Interop.java"
	stamp .stamp "$sources"/java/*
}

if command -v kcat >/dev/null; then client kcat kcat; else left_out+=("kcat: not installed (Debian package kcat)"); fi
build go build_go
if [ $built = 0 ]; then
	client franz-go "$cache/bin/franz"
	client sarama "$cache/bin/sarama"
	client kafka-go "$cache/bin/segmentio"
fi
build confluent-kafka-go build_confluent
if [ $built = 0 ]; then client confluent-kafka-go "$cache/bin/confluent"; fi
build js build_js
if [ $built = 0 ]; then
	client kafkajs "node $cache/js/kafkajs.js"
	client platformatic "node $cache/js/platformatic.js"
fi
build java build_java
if [ $built = 0 ]; then
	client java "java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp $cache/java/classes:$cache/java/lib/* Interop"
fi
build python build_python
if [ $built = 0 ]; then client kafka-python "$cache/venv/bin/python $sources/python/kafka_python.py"; fi

if [ ${#left_out[@]} -gt 0 ]; then
	printf 'left out: %s\n' "${left_out[@]}"
	if [ -n "${MINK_TEST_NOTHING_LEFT_OUT:-}" ]; then exit 1; fi
fi

export MINK_TEST_BINARY=$PWD/bin/mink MINK_TEST_INTEROP=$cache/clients MINK_TEST_INTEROP_BROKER=${BROKER:-}
tests='^TestInterop(QuickStarts)?$'
[ -z "$MINK_TEST_INTEROP_BROKER" ] || tests='^TestInterop$'
log=.cache/interop/run.log
result=0
go test -count=1 -timeout 15m -parallel 2 -v -run "$tests" ./core/e2e >$log 2>&1 || result=$?
if [ $result = 0 ]; then grep -E '^[┌│├└]' $log; else grep -vE '^=== |^ *--- PASS' $log; fi
exit $result
