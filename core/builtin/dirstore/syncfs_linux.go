package dirstore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func syncFileSystem(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		err = &os.PathError{Op: "syncfs", Path: name, Err: err}
		return errors.Join(err, d.Close())
	}
	return d.Close()
}
