#!/usr/bin/env bash
# What stands in a released .proto stays: since the last tag (or the given commit)
# lines may only have been added. Without a tag nothing is released yet.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${1:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
[ -n "$base" ] || { echo "protos: nothing is released yet: no tag to compare with"; exit 0; }
changed=$(git diff --no-renames --numstat "$base" -- sdk/proto | awk '$2 != "0" { print $3 }')
if [ -n "$changed" ]; then
	echo "protos: lines of $base are gone or changed (sdk/VERSIONING.md): $changed"
	exit 1
fi
echo "protos: everything of $base is there"
