package pluginhost

import "io"

// Guard is guard: tests give it another user than this one.
var Guard = guard

// OpenSource opens what Install reads of a file that must have the checksum.
func OpenSource(path, staging, sum string) (io.ReadCloser, error) {
	c := &collector{staging: staging, bytesMax: installBytesMax}
	return c.source(path, sum)
}
