#!/usr/bin/env bash
# Benchmarks: first the engine's own (Go benchmarks, benchstat), then whole
# brokers through the Kafka port beside the limits of this machine.
#   BENCH_N=10         rounds of the broker comparison, repetitions of the Go benchmarks (default 3)
#   BENCH_SECONDS=3    measured seconds of one run
#   BENCH_WHAT=all     engine, brokers or all
#   BENCH_ARGS=...     more flags for `bench suite`, such as -peer NAME=HOST:PORT
#   BENCH_KAFKA=1      also Apache Kafka (needs Java and Maven; jars under .cache/kafka)
# Raw results go to .cache/bench. Nothing here fails because something is slow.
set -euo pipefail
cd "$(dirname "$0")/.."

n=${BENCH_N:-3}
what=${BENCH_WHAT:-all}
out=.cache/bench
benchstat=golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
mkdir -p $out

if [ "$what" = all ] || [ "$what" = engine ]; then
	echo "# Engine"
	# Each figure and its aim: the comment of the benchmark.
	go test -run '^$' -bench 'Append$|Seal$|Upload10kStreams|HotRead|FullGC|Figure' -benchmem -benchtime 0.5s \
		-count "$n" -timeout 60m ./core/stream >$out/engine.txt || { cat $out/engine.txt; exit 1; }
	go test -run '^$' -bench . -benchmem -benchtime 0.5s -count "$n" -timeout 60m \
		./core/record/... ./core/tablet ./core/kafka ./core/pluginhost ./plugins/objstore-s3 >$out/paths.txt || { cat $out/paths.txt; exit 1; }
	# In virtual time: latencies of the schedule, not of this machine.
	go test -run TestAckFigures -v -timeout 20m ./core/stream -ack-figures >$out/ack.txt || { cat $out/ack.txt; exit 1; }
	sed -n 's/^ *ack_figures_test.go:[0-9]*: //p' $out/ack.txt
	# Primary-key tables: the tablet against its store alone. Aims: lookups 0.70, upserts 0.35.
	go test -run TestRatios -v -timeout 60m ./core/tablet/kv -ratios "$((n < 10 ? 10 : n))" >$out/kv.txt || { cat $out/kv.txt; exit 1; }
	sed -n 's/^ *bench_test.go:[0-9]*: //p' $out/kv.txt
	# Reads of a lake table before and after a compaction, by turns.
	go test -run '^$' -bench ReadsAfterCompaction -benchtime 10x -count "$n" -timeout 60m ./core/lake >$out/lake.txt || { cat $out/lake.txt; exit 1; }
	for f in engine paths lake; do
		go run $benchstat $out/$f.txt
	done
fi

if [ "$what" = all ] || [ "$what" = brokers ]; then
	echo "# Brokers"
	make --no-print-directory -s build
	CGO_ENABLED=0 go build -o $out/bench ./core/bench
	kafka=()
	if [ -n "${BENCH_KAFKA:-}" ]; then
		mvn -q -B -f scripts/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/.cache/kafka"
		kafka=(-kafka-libs .cache/kafka)
	fi
	# shellcheck disable=SC2086
	$out/bench suite -n "$n" -seconds "${BENCH_SECONDS:-3}" -mink mink=bin/mink -raw $out/brokers.jsonl "${kafka[@]}" ${BENCH_ARGS:-} | tee $out/brokers.md
fi
