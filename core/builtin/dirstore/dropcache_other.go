//go:build !linux

package dirstore

// DropCache implements cached: there is no such advice here.
func (f osFile) DropCache() {}
