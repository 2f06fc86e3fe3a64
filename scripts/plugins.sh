#!/usr/bin/env bash
# Builds every plugin under plugins/ and sdk/examples/ into a directory (default
# bin/plugins) under the name that its manifest says, with the manifest beside it.
# Names as further arguments (objstore-s3) limit what is built.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-bin/plugins}
shift || true
export CGO_ENABLED=0
mkdir -p "$dir"
flags="-s -w -X github.com/mink-project/mink/plugins/internal/cloudstore.Version=${VERSION:-unknown}"
found=$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' ./plugins/... $([ -d sdk/examples ] && echo ./sdk/examples/...))
for package in $found; do
	name=${package##*/}
	if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
	file="$dir/mink-plugin-$name"
	# Into a new file: one that runs cannot be written over.
	go build -ldflags "$flags" -o "$file.new" "$package"
	sum=$(sha256sum "$file.new" | cut -d' ' -f1)
	manifest=$("$file.new" --describe)
	printf '%s\n' "${manifest%$'\n'\}}," "  \"sha256\": \"$sum\"" "}" >"$file.json.new"
	mv "$file.new" "$file"
	mv "$file.json.new" "$file.json"
	echo "built $file"
done
