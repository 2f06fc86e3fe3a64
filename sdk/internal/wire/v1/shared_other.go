//go:build !linux

package wire

import (
	"errors"
	"os"
)

func createShared(int) (*os.File, []byte, error) { return nil, nil, errors.ErrUnsupported }

func unmapShared([]byte) {}

// InheritShared answers nil: there is none here.
func InheritShared() Region { return nil }
