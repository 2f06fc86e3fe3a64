package dirstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/mink-project/mink/sdk/objstore"
)

// explain maps a file error to the contract's errors and says what to do.
// fs.ErrNotExist is not special here: the callers for whom it has a meaning look
// themselves.
func (s *Store) explain(op, key string, err error) error {
	class, advice := objstore.ErrUnavailable, "check the disk and the directory"
	switch {
	case errors.Is(err, syscall.ENOSPC):
		class, advice = objstore.ErrNoSpace, "free space on the disk of "+s.root
	case errors.Is(err, syscall.EDQUOT):
		class, advice = objstore.ErrNoSpace, "raise the disk quota of the user who runs this process"
	case errors.Is(err, syscall.EROFS):
		class, advice = objstore.ErrReadOnly, "remount the disk of "+s.root+" read-write; a disk error may have made it read-only, see the kernel's log"
	case errors.Is(err, fs.ErrPermission):
		class, advice = objstore.ErrUnauthorized, fmt.Sprintf("give user id %d read, write and search permission on %s and all below it", os.Getuid(), s.root)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		advice = "raise the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.EIO):
		advice = "the disk reported an I/O error; see the kernel's log"
	case errors.Is(err, syscall.ENAMETOOLONG):
		class, advice = objstore.ErrInvalid, "the path is too long for this file system; use a shorter directory than "+s.root
	case errors.Is(err, syscall.EXDEV):
		class, advice = objstore.ErrInvalid, "everything under "+s.root+" must lie on one file system"
	case errors.Is(err, syscall.ENOTDIR):
		class, advice = objstore.ErrInvalid, "a file stands where a directory is needed"
	}
	return fmt.Errorf("%s %q: %w: %s: %w", op, key, class, advice, err)
}

// explainLink is explain for link(2), which some file systems do not have.
func (s *Store) explainLink(op, key string, err error) error {
	if errors.Is(err, syscall.EPERM) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EMLINK) {
		return fmt.Errorf("%s %q: %w: the file system of %s has no hard links, which create-only writes need; choose a directory on another one: %w",
			op, key, objstore.ErrUnimplemented, s.root, err)
	}
	return s.explain(op, key, err)
}

func notExist(op, key string) error { return fmt.Errorf("%s %q: %w", op, key, objstore.ErrNotExist) }
