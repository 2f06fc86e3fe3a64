#!/usr/bin/env bash
# Builds bin/mink-clock and bin/plugins-clock: the node and its S3 plugin with a standard
# library whose wall clock is off by the seconds that a file says, for tests
# (docs/chaos.md). The file is named by AWS_MINK_TEST_CLOCK (AWS_: what the plugin's
# manifest lets through) and holds a little-endian int64; it is mapped, so that the clock
# jumps when the file is written. Timers, leases and durations go by the monotonic clock,
# which stays. No source of Mink's differs.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/.cache/clock
mkdir -p "$dir"
src=$(go env GOROOT)/src/time/time.go
anchor='	sec, nsec, mono := runtimeNow()'
[ "$(grep -cxF "$anchor" "$src")" = 1 ] || { echo "$src: time.Now is not as this script knows it"; exit 1; }
awk -v anchor="$anchor" '{ print } $0 == anchor { print "\tsec += wallClockOff()" }' "$src" >"$dir/time.go"
cat >"$dir/zz_clock.go" <<'GO'
package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var wallClock *int64

func init() {
	name, ok := syscall.Getenv("AWS_MINK_TEST_CLOCK")
	if !ok {
		return
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("AWS_MINK_TEST_CLOCK: " + err.Error())
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("AWS_MINK_TEST_CLOCK: " + err.Error())
	}
	_ = syscall.Close(fd)
	wallClock = (*int64)(unsafe.Pointer(&page[0]))
}

func wallClockOff() int64 {
	if wallClock == nil {
		return 0
	}
	return atomic.LoadInt64(wallClock)
}
GO
root=$(go env GOROOT)
printf '{"Replace": {"%s/src/time/time.go": "%s/time.go", "%s/src/time/zz_clock.go": "%s/zz_clock.go"}}\n' "$root" "$dir" "$root" "$dir" >"$dir/overlay.json"
CGO_ENABLED=0 go build -overlay "$dir/overlay.json" -ldflags "-X github.com/mink-project/mink/core/server.Version=${VERSION:-clock}" -o bin/mink-clock ./cmd/mink
GOFLAGS="$(go env GOFLAGS) -overlay=$dir/overlay.json" scripts/plugins.sh bin/plugins-clock objstore-s3
