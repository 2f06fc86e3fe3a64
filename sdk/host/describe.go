package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"syscall"
	"time"

	"github.com/mink-project/mink/sdk/plugin"
)

// describeTimeout bounds one run of an executable with --describe.
const describeTimeout = 10 * time.Second

// Describe runs the executable with --describe and answers the manifest that it
// prints, with the executable's checksum added.
func Describe(ctx context.Context, path string) (plugin.Manifest, error) {
	sum, err := Checksum(path)
	if err != nil {
		return plugin.Manifest{}, fmt.Errorf("plugin %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--describe") //nolint:gosec // the executable is the point
	cmd.Env = environment(nil, slog.New(slog.DiscardHandler))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { killGroup(cmd.Process); return nil }
	cmd.WaitDelay = time.Second
	out, errs := &limited{max: plugin.ManifestMax}, &limited{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end within %v: %w", describeTimeout, ctx.Err())
		}
		return plugin.Manifest{}, fmt.Errorf("plugin %s: it does not print its manifest when run with --describe: %w%s%s", path, err, whyNotStarted(err), quoted(errs.Bytes()))
	}
	m, err := plugin.ParseManifest(out.Bytes())
	if err != nil {
		return plugin.Manifest{}, fmt.Errorf("plugin %s: %w%s", path, err, quoted(out.Bytes()))
	}
	m.SHA256 = sum
	return m, nil
}

func quoted(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return ""
	}
	return fmt.Sprintf("; it printed %.200q", b)
}

// limited keeps up to max bytes and fails beyond them.
type limited struct {
	bytes.Buffer
	max int
}

var errTooMuch = errors.New("it prints too much")

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > l.max {
		return 0, errTooMuch
	}
	return l.Buffer.Write(b)
}
