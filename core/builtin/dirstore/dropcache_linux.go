package dirstore

import "golang.org/x/sys/unix"

// DropCache implements cached. It is advice: a failure changes nothing.
func (f osFile) DropCache() {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
