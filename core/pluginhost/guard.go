package pluginhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrUnsafe is the error of a plugin, or a plugin directory, that users other than
// root and the node's own could change: a node would run what they put there.
var ErrUnsafe = errors.New("other users could put a plugin of theirs in its place")

// worldWritable is the permission to write for everybody.
const worldWritable = 0o002

// guard refuses a plugin whose executable or manifest others could change or
// replace. me is the node's effective user id. A group's right to write is not
// looked at: on many systems every user has a group of their own.
func guard(path string, me int) error {
	if err := guardDir(filepath.Dir(path), me); err != nil {
		return err
	}
	for _, name := range []string{path, path + manifestSuffix} {
		file, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		if err := guardOne(file, me); err != nil {
			return err
		}
		if err := guardDir(filepath.Dir(file), me); err != nil {
			return err
		}
	}
	return nil
}

// guardDir refuses a directory in which others could make files, and one that
// others could put another directory in the place of. Above it a directory like
// /tmp will do, in which everybody may make names and nobody may touch another's.
func guardDir(dir string, me int) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if err := guardOne(dir, me); err != nil {
		return err
	}
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&worldWritable != 0 && info.Mode()&fs.ModeSticky == 0 {
			return writable(parent)
		}
	}
	return nil
}

// guardOne looks at the file or directory itself; path has no links in it.
func guardOne(path string, me int) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&worldWritable != 0 {
		return writable(path)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != me {
		return fmt.Errorf("%w: %s belongs to user %d, and the node runs as user %d: chown %d %s, or run the node as its owner", ErrUnsafe, path, s.Uid, me, me, path)
	}
	return nil
}

func writable(path string) error {
	return fmt.Errorf("%w: everybody may write to %s: chmod o-w %s", ErrUnsafe, path, path)
}
