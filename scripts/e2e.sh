#!/usr/bin/env bash
# End-to-end tests: real node processes, real clients. `scripts/e2e.sh chaos` runs ROUNDS
# random SIGKILLs under load instead (MINK_TEST_CHAOS_SEED repeats a run). `scripts/e2e.sh
# chaos-cluster` does ROUNDS random things to three nodes with a Postgres and an S3 server
# (SEED repeats a run; RUN='^TestCluster' runs every fault alone), `scripts/e2e.sh
# chaos-lake` to their tiering (FAULT chooses faults), `scripts/e2e.sh chaos-sink` to the
# tiering into Postgres: docs/chaos.md. `scripts/e2e.sh s3` runs what does not look into
# the store's directory with the objects in S3: bin/plugins and a server of .cache/cloud
# for every node. RUN chooses tests by name. Needs bin/mink, kcat, python3 and, for the
# manual's commands, jq, curl, pgrep and Postgres; makes a Python environment of its own
# under .cache. Prints what was left out, and fails for it when MINK_TEST_NOTHING_LEFT_OUT
# is set. scripts/interop.sh runs TestInterop.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in kcat jq curl pgrep; do
	command -v $tool >/dev/null || { echo "e2e needs $tool (Debian package ${tool/pgrep/procps})"; exit 1; }
done
venv=.cache/venv
want=$(cat scripts/requirements.txt)
if [ "$(cat $venv/.requirements 2>/dev/null)" != "$want" ]; then
	rm -rf $venv
	python3 -m venv $venv
	$venv/bin/pip install --quiet --disable-pip-version-check -r scripts/requirements.txt
	echo "$want" >$venv/.requirements
fi
export MINK_TEST_PYTHON="$PWD/$venv/bin/python"
export MINK_TEST_BINARY="$PWD/bin/mink"
[ -x "$MINK_TEST_BINARY" ] || { echo "e2e needs bin/mink: run make build"; exit 1; }

if [ "${1:-all}" = chaos ]; then
	MINK_TEST_CHAOS_ROUNDS="${ROUNDS:-20}" exec go test -count=1 -timeout 60m -v -run '^TestChaos' ./core/e2e
fi

if [ "${1:-all}" = chaos-sink ]; then
	export MINK_TEST_POSTGRES=required MINK_TEST_CHAOS_SEED="${SEED:-}"
	MINK_TEST_CHAOS_ROUNDS="${ROUNDS:-5}" exec go test -count=1 -timeout 10h -v -run '^TestSinkChaos$' ./core/e2e
fi

if [ "${1:-all}" = chaos-cluster ] || [ "${1:-all}" = chaos-lake ]; then
	export MINK_TEST_CLOUD=required MINK_TEST_POSTGRES=required MINK_TEST_PLUGINS="$PWD/bin/plugins" MINK_TEST_CHAOS_ROUNDS="${ROUNDS:-5}" MINK_TEST_CHAOS_SEED="${SEED:-}"
	export MINK_TEST_CHAOS_DIARY="$PWD/.cache" # what was said while a writer waited for long, a file each
	[ -x "$MINK_TEST_PLUGINS/mink-plugin-objstore-s3" ] || { echo "chaos of a cluster needs bin/plugins: run make plugins"; exit 1; }
	if [ -x bin/mink-clock ]; then # scripts/skewed-clock.sh: else without the fault of a clock
		export MINK_TEST_CLOCK_BINARY="$PWD/bin/mink-clock" MINK_TEST_CLOCK_PLUGINS="$PWD/bin/plugins-clock"
	fi
	# kafka-go, which is not in the product's module: docs/decisions/017.
	mkdir -p .cache/interop/bin
	(cd core/e2e/interop/go && CGO_ENABLED=0 go build -o "$OLDPWD/.cache/interop/bin/" ./moving)
	export MINK_TEST_KAFKA_GO="$PWD/.cache/interop/bin/moving"
	log=.cache/$1.log # with the nodes' logs when a round failed
	run='^TestClusterChaos$'
	if [ "$1" = chaos-lake ]; then
		scripts/lake-venv.sh
		export MINK_TEST_LAKE_PYTHON="$PWD/.cache/lake-venv/bin/python" MINK_TEST_FAULT_BINARY="$PWD/bin/mink-faults" MINK_TEST_CHAOS_FAULT="${FAULT:-}"
		[ -x "$MINK_TEST_FAULT_BINARY" ] || { echo "chaos of the lake needs bin/mink-faults: run make chaos-lake"; exit 1; }
		run='^TestLakeChaos$'
	fi
	status=0
	go test -count=1 -timeout 10h -v -run "${RUN:-$run}" ./core/e2e >$log 2>&1 || status=$?
	grep -vE '^ *\{"time"|^=== ' $log || true
	[ $status = 0 ] || echo "all of it: $log"
	exit $status
fi

skip='^TestInterop(QuickStarts)?$|^TestCluster|^TestLake' # scripts/interop.sh, make chaos-cluster, make e2e-lake
if [ "${1:-all}" = s3 ]; then
	export MINK_TEST_STORAGE=s3 MINK_TEST_CLOUD=required MINK_TEST_PLUGINS="$PWD/bin/plugins"
	[ -x "$MINK_TEST_PLUGINS/mink-plugin-objstore-s3" ] || { echo "e2e on S3 needs bin/plugins: run make plugins"; exit 1; }
	RUN=${RUN:-'^Test(Chaos|GoClientOutlivesKills|OneTableForBothProtocols|TypedTopic|AdminThroughKadm|PluginKilledUnderLoad|NodeKilledOnPlugins|PluginStoppedUnderANode|ObjectServerKilledUnderLoad|TypedRows|CSV|JSONAndArrow|Lines|Debian|EveryCodec|TooLargeRecord|Headers|SeveralPartitions|OffsetsByTimestamp|TopicLifecycle)'}
else
	skip="$skip|^TestObjectServerKilledUnderLoad\$" # of the run on S3
fi

# The tests wait more than they compute: more of them at once than processors.
log=.cache/e2e.log
if ! go test -count=1 -timeout 20m -parallel 6 -v -run "${RUN:-.}" -skip "$skip" ./core/e2e >$log 2>&1; then
	grep -vE '^=== |^ *--- PASS' $log || true
	exit 1
fi
grep -E '^ok|rounds: |idle for' $log
left=$(grep -A3 -E '^ *--- SKIP' $log || true)
if [ -n "$left" ]; then
	printf 'left out:\n%s\n' "$left"
	[ -z "${MINK_TEST_NOTHING_LEFT_OUT:-}" ] || exit 1
fi
