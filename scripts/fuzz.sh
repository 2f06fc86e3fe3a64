#!/usr/bin/env bash
# Runs every fuzz test for the given time each.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
git grep -lE '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u | while read -r dir; do
	grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/func //' | while read -r name; do
		echo "fuzz $dir $name"
		go test "./$dir" -run '^$' -fuzz "^$name\$" -fuzztime "$time"
	done
done
