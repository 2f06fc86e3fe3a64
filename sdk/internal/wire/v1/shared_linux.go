package wire

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// createShared makes anonymous memory of a fixed size. The seals matter: a plugin
// that could shrink the file would make the host's next read a bus error.
func createShared(size int) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate("mink-plugin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), "mink-plugin") //nolint:gosec // a descriptor
	if err := f.Truncate(int64(size)); err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) //nolint:gosec // a descriptor
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, mem, nil
}

func unmapShared(mem []byte) { _ = unix.Munmap(mem) }

// InheritShared maps what the host passed, nil when it passed nothing.
func InheritShared() Region {
	size, err := strconv.Atoi(os.Getenv(SharedEnv))
	if err != nil || size <= 0 {
		return nil
	}
	mem, err := unix.Mmap(SharedFD, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	_ = unix.Close(SharedFD)
	if err != nil {
		return nil
	}
	return mem
}
