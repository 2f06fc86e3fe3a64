#!/usr/bin/env bash
# Runs fuzz tests, each for some time, and says what each did. Fails when one
# failed; the input that failed is then in the package's testdata/fuzz.
#   scripts/fuzz.sh [TIME [NAME...]]   TIME as go test takes it, default 10s; NAME is a
#                                      part of PACKAGE/FuzzTest: kafka, flight/FuzzCommand
#   JOBS=2 PROCS=1 scripts/fuzz.sh 10m JOBS tests side by side (1), each on PROCS processors (all / JOBS)
#   KEEP=12 scripts/fuzz.sh ...        puts so many of the inputs that were found into testdata/fuzz: small
#                                      ones (1 KiB), from the first to the last found
#   TURN=TEXT PART=6 scripts/fuzz.sh   PART tests that follow one another, from a place that TEXT says: over
#                                      many texts (commits) all have their turn. None begins after
#                                      BUDGET seconds (180), when nothing was compiled yet
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZ_TIME=${1:-10s} KEEP=${KEEP:-0}
jobs=${JOBS:-1}
cpus=$(nproc)
procs=${PROCS:-$((cpus / jobs > 0 ? cpus / jobs : 1))}
export GOMAXPROCS=$procs
shift || true

FUZZ_LOGS=$(mktemp -d)
export FUZZ_LOGS
trap 'rm -rf "$FUZZ_LOGS"' EXIT

# every PACKAGE/FuzzTest, or those that one of the names is a part of
targets() {
	git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed -E 's#/[^/:]+:func #/#' | sort -u | if [ $# -eq 0 ]; then cat; else
		grep -F "$(printf '%s\n' "$@")"
	fi
}

# a part of the list: PART lines of it, as if it were a ring, from where TURN's hash points
part() {
	local all at
	mapfile -t all
	at=$((16#$(sha256sum <<<"$TURN" | cut -c1-12) % (${#all[@]} > 0 ? ${#all[@]} : 1)))
	for ((i = 0; i < PART && i < ${#all[@]}; i++)); do echo "${all[(at + i) % ${#all[@]}]}"; done
}

# how to keep the input that failed, which may be on a machine that is gone tomorrow
saved() {
	local input
	input=$(sed -nE 's/.*Failing input written to (testdata[^ ]+).*/\1/p' "$2" | head -n 1)
	[ -n "$input" ] && [ -f "$1/$input" ] || return 0
	echo "    --- keep it: put this into $1/$input and commit it with the fix; go test runs it from then on"
	if [ "$(wc -c <"$1/$input")" -le 16384 ]; then
		cat "$1/$input"
	else
		echo "    (gzip, base64: pipe it through base64 -d | gunzip)"
		gzip -9c "$1/$input" | base64
	fi
	echo "    ---"
}

# one PACKAGE/FuzzTest: a line with its outcome, executions and found inputs
one() {
	local dir=${1%/*} name=${1##*/} log outcome=ok
	log=$FUZZ_LOGS/${1//\//_}
	if [ -n "$TURN" ] && [ $(($(date +%s) - FUZZ_BEGAN)) -ge "$BUDGET" ]; then
		printf 'not run\t%s\t%s s are over\n' "$1" "$BUDGET"
		return
	fi
	go test "./$dir" -run '^$' -fuzz "^$name\$" -fuzztime "$FUZZ_TIME" -fuzzminimizetime 200x >"$log" 2>&1 || outcome=FAIL
	printf '%s\t%s\t%s\n' "$outcome" "$1" "$(grep -oE 'execs: [0-9]+|new interesting: [0-9]+ \(total: [0-9]+\)' "$log" | tail -n 2 | paste -sd ' ')"
	if [ $outcome = FAIL ]; then
		sed 's/^/    /' "$log" | tail -n 60
		saved "$dir" "$log"
		touch "$FUZZ_LOGS/failed"
	elif [ "$KEEP" -gt 0 ]; then
		keep "$dir" "$name"
	fi
}

# keep copies some of the inputs that runs of a fuzz test have found.
keep() {
	local found=$FUZZ_CACHE/$1/$2 into=$1/testdata/fuzz/$2
	[ -d "$found" ] || return 0
	mkdir -p "$into"
	find "$found" -type f -size -1025c -printf '%T@ %p\n' | sort -n | cut -d' ' -f2 |
		awk -v keep="$KEEP" '{ all[NR] = $0 } END { n = NR < keep ? NR : keep; for (i = 1; i <= n; i++) print all[int((i - 0.5) * NR / n) + 1] }' |
		xargs -r -I{} cp -n {} "$into/"
}
export -f one keep saved
FUZZ_BEGAN=$(date +%s)
export TURN=${TURN:-} PART=${PART:-6} BUDGET=${BUDGET:-180} FUZZ_BEGAN
FUZZ_CACHE=$(go env GOCACHE)/fuzz/$(go list -m)
export FUZZ_CACHE

targets "$@" >"$FUZZ_LOGS/list"
count=$(wc -l <"$FUZZ_LOGS/list")
if [ -n "$TURN" ]; then
	part <"$FUZZ_LOGS/list" >"$FUZZ_LOGS/part"
	mv "$FUZZ_LOGS/part" "$FUZZ_LOGS/list"
fi
[ -s "$FUZZ_LOGS/list" ] || { echo "no fuzz test has a name like: $*"; exit 1; }
echo "$(wc -l <"$FUZZ_LOGS/list") of $count fuzz tests, $FUZZ_TIME each, $jobs side by side on $procs processors each"
xargs -r -P "$jobs" -I{} bash -c 'one {}' <"$FUZZ_LOGS/list"
[ ! -e "$FUZZ_LOGS/failed" ]
