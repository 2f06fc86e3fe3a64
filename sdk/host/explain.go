package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mink-project/mink/sdk/internal/handshake"
)

// ErrChecksum: the executable is not the one that was installed.
var ErrChecksum = errors.New("checksum differs")

// Checksum is the SHA-256 of an executable, hexadecimal.
func Checksum(path string) (string, error) {
	f, err := os.Open(path) //nolint:gosec // the caller's choice
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read only
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func verify(path, want string) error {
	got, err := Checksum(path)
	if err != nil {
		return fmt.Errorf("plugin %s: %w", path, err)
	}
	if !strings.EqualFold(got, want) {
		return fmt.Errorf("plugin %s: %w: it has sha256 %s and was installed with %s; it was not started. If it was replaced on purpose, run mink plugin install again",
			path, ErrChecksum, got, strings.ToLower(want))
	}
	return nil
}

// VersionError is a plugin and a host that have no protocol version in common.
type VersionError struct {
	Plugin    string
	Has, Host []int // majors of the two sides; Has may be the lowest alone
}

func (e *VersionError) Error() string {
	remedy := "upgrade the plugin"
	if slices.Min(e.Has) > slices.Max(e.Host) {
		remedy = "upgrade Mink, or install an older version of the plugin"
	}
	return fmt.Sprintf("plugin %s speaks plugin protocol %s and this Mink speaks %s: %s", e.Plugin, majors(e.Has), majors(e.Host), remedy)
}

func majors(versions []int) string {
	s := slices.Clone(versions)
	slices.Sort(s)
	text := make([]string, len(s))
	for i, v := range s {
		text[i] = strconv.Itoa(v)
	}
	return strings.Join(text, " and ")
}

// CheckProtocols is a *VersionError when a manifest's majors have none in common
// with this host's.
func CheckProtocols(name string, has, speaks []int) error {
	if slices.ContainsFunc(has, func(v int) bool { return slices.Contains(speaks, v) }) {
		return nil
	}
	return &VersionError{Plugin: name, Has: has, Host: speaks}
}

// explain says what a plugin did instead of starting. err is go-plugin's or
// connect's.
func (p *Process) explain(ctx context.Context, err error) error {
	name := filepath.Base(p.cfg.Path)
	fail := func(format string, args ...any) error {
		text := fmt.Sprintf(format, args...)
		if tail := p.child.log.tail(); tail != "" {
			text += "; its last output: " + tail
		}
		return fmt.Errorf("plugin %s: %s", p.cfg.Path, text)
	}
	line, said, mute := "", false, false
	if l := p.child.firstLine.Load(); l != nil {
		line, said, mute = *l, *l != "", *l == ""
	}
	var kind *KindError
	switch {
	case p.child.pid() == 0:
		return fmt.Errorf("plugin %s: cannot be started: %w%s", p.cfg.Path, err, whyNotStarted(err))
	case errors.Is(context.Cause(ctx), errStartTimeout):
		return fail("it did not answer within %v of its start and was killed", p.cfg.StartTimeout)
	case ctx.Err() != nil:
		return fmt.Errorf("plugin %s: its start was given up: %w", p.cfg.Path, context.Cause(ctx))
	case errors.As(err, &kind):
		return fmt.Errorf("plugin %s: %w", p.cfg.Path, err)
	}
	parts := strings.Split(line, "|")
	if said && (len(parts) < 5 || parts[0] != "1") {
		return fmt.Errorf("plugin %s: it is no Mink plugin, or one of another go-plugin: it printed %.200q where a plugin says how to reach it", p.cfg.Path, line)
	}
	if said {
		if v, verr := strconv.Atoi(parts[1]); verr == nil && !slices.Contains(p.cfg.versions, v) {
			return &VersionError{Plugin: name, Has: []int{v}, Host: p.cfg.versions}
		}
	}
	select {
	case <-p.child.exited:
	case <-time.After(100 * time.Millisecond): // one that is just ending
	}
	if ended := p.Err(); ended != nil && !p.child.wasKilled() {
		return fmt.Errorf("plugin %s: it ended before it was ready: %w", p.cfg.Path, ended)
	}
	if mute {
		return fail("it closed its standard output without saying how to reach it")
	}
	return fail("%v", err)
}

func whyNotStarted(err error) string {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return "; it is no executable for this machine"
	case errors.Is(err, os.ErrPermission):
		return "; make it executable with chmod +x"
	case errors.Is(err, syscall.ETXTBSY):
		return "; something is still writing it"
	}
	return ""
}

// Protocols are the majors that this host speaks.
func Protocols() []int { return handshake.Versions() }
