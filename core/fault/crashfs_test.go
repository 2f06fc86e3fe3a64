package fault_test

import (
	"bytes"
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/mink-project/mink/core/fault"
)

func write(t *testing.T, p *fault.Process, name, data string, sync bool) *fault.CrashFile {
	t.Helper()
	f, err := p.OpenFile(name, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(data), 0); err != nil {
		t.Fatal(err)
	}
	if sync {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func content(t *testing.T, p *fault.Process, name string) string {
	t.Helper()
	f, err := p.OpenFile(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return "(absent)"
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, info.Size)
	if _, err := f.ReadAt(data, 0); err != nil && info.Size > 0 {
		t.Fatal(err)
	}
	return string(data)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestPowerLossKeepsWhatWasSynced(t *testing.T) {
	disk := fault.NewCrashFS(1)
	p := disk.Process(-1)
	write(t, p, "/both", "synced", true)
	write(t, p, "/name-only", "unsynced", false)
	must(t, p.Mkdir("/dir"))
	must(t, p.SyncDir("/"))
	write(t, p, "/data-only", "synced", true)
	write(t, p, "/dir/below", "synced", true)
	f := write(t, p, "/both", "SYNCED and more", false)
	must(t, p.Remove("/name-only"))
	if got := content(t, p, "/both"); got != "SYNCED and more" {
		t.Fatalf("before the loss: %q", got)
	}
	disk.PowerLoss(fault.Survival{})
	if _, err := f.Stat(); !errors.Is(err, fault.ErrKilled) {
		t.Fatalf("a handle outlived the power loss: %v", err)
	}
	p = disk.Process(-1)
	for name, want := range map[string]string{
		"/both": "synced", "/name-only": "", "/data-only": "(absent)", "/dir/below": "(absent)",
	} {
		if got := content(t, p, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if info, err := p.Stat("/dir"); err != nil || !info.Dir {
		t.Fatalf("/dir: %+v, %v", info, err)
	}
}

func TestFullLuckKeepsEverythingAndSomeLuckSome(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(200) {
		disk := fault.NewCrashFS(seed)
		p := disk.Process(-1)
		must(t, p.SyncDir("/"))
		old := bytes.Repeat([]byte("o"), 3*512)
		write(t, p, "/f", string(old), true)
		must(t, p.SyncDir("/"))
		write(t, p, "/f", string(bytes.Repeat([]byte("n"), 3*512)), false)
		must(t, p.Rename("/f", "/g"))
		luck := fault.Survival{Names: 0.5, Sectors: 0.5}
		if seed == 0 {
			luck = fault.Survival{Names: 1, Sectors: 1}
		}
		disk.PowerLoss(luck)
		p = disk.Process(-1)
		f, g := content(t, p, "/f"), content(t, p, "/g")
		if seed == 0 && (f != "(absent)" || g != string(bytes.Repeat([]byte("n"), 3*512))) {
			t.Fatalf("with full luck: %q, %q", f, g)
		}
		kind := ""
		for _, c := range []string{f, g} {
			switch {
			case c == "(absent)":
				kind += "absent "
			case bytes.Contains([]byte(c), []byte("on")) || bytes.Contains([]byte(c), []byte("no")):
				kind += "mixed "
			default:
				kind += c[:1] + " "
			}
		}
		kinds[kind]++
	}
	for _, want := range []string{"o absent ", "absent n ", "mixed mixed ", "absent absent ", "n n "} {
		if kinds[want] == 0 {
			t.Errorf("200 seeds never gave %q: %v", want, kinds)
		}
	}
}

func TestKillLeavesTheKernelAlive(t *testing.T) {
	disk := fault.NewCrashFS(1)
	victim, witness := disk.Process(2), disk.Process(-1)
	lock, ok, err := witness.Lock("/lock")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, ok, err := victim.Lock("/lock"); ok || err != nil {
		t.Fatalf("a held lock was given: %v", err)
	}
	must(t, lock.Close())
	if _, ok, _ := victim.Lock("/lock"); !ok {
		t.Fatal("a free lock was refused")
	}
	must(t, victim.Mkdir("/d"))
	f, err := victim.Create("/d/f")
	must(t, err)
	n, err := f.Write([]byte("12345678"))
	if n != 4 || !errors.Is(err, fault.ErrKilled) {
		t.Fatalf("the killing write: %d, %v", n, err)
	}
	if err := victim.Mkdir("/e"); !errors.Is(err, fault.ErrKilled) || !victim.Dead() || victim.Changes() != 2 {
		t.Fatalf("a dead process works: %v", err)
	}
	if got := content(t, witness, "/d/f"); got != "1234" {
		t.Fatalf("the witness sees %q", got)
	}
	if _, ok, _ := witness.Lock("/lock"); !ok {
		t.Fatal("the dead process still holds its lock")
	}
}

func TestLinksNamesAndErrors(t *testing.T) {
	p := fault.NewCrashFS(1).Process(-1)
	write(t, p, "/a", "a", false)
	must(t, p.Link("/a", "/b"))
	if info, _ := p.Stat("/a"); info.Links != 2 {
		t.Fatalf("%d links", info.Links)
	}
	must(t, p.Rename("/a", "/b")) // one file: nothing happens
	if content(t, p, "/a") != "a" {
		t.Fatal("rename over another name of the same file removed it")
	}
	must(t, p.Remove("/a"))
	if info, _ := p.Stat("/b"); info.Links != 1 {
		t.Fatalf("%d links", info.Links)
	}
	must(t, p.Mkdir("/d"))
	write(t, p, "/d/x", "", false)
	for _, c := range []struct {
		err  error
		want error
	}{
		{p.Link("/b", "/d/x"), fs.ErrExist},
		{p.Link("/none", "/y"), fs.ErrNotExist},
		{p.Mkdir("/b"), fs.ErrExist},
		{p.Mkdir("/no/where"), fs.ErrNotExist},
		{p.Mkdir("/b/c"), syscall.ENOTDIR},
		{p.Remove("/d"), syscall.ENOTEMPTY},
		{p.Remove("/none"), fs.ErrNotExist},
		{p.Rename("/b", "/d"), syscall.EISDIR},
		{p.SyncDir("/none"), fs.ErrNotExist},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%v, want %v", c.err, c.want)
		}
	}
	names, err := p.ReadDir("/")
	if err != nil || len(names) != 2 {
		t.Fatalf("%v, %v", names, err)
	}
}

func TestCapacityCountsContent(t *testing.T) {
	disk := fault.NewCrashFS(1)
	disk.SetCapacity(10)
	p := disk.Process(-1)
	f := write(t, p, "/a", "12345678", false)
	n, err := f.WriteAt([]byte("abcd"), 8)
	if n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if _, err := f.WriteAt([]byte("XX"), 0); err != nil {
		t.Fatalf("overwriting needs no room: %v", err)
	}
	must(t, f.Truncate(4), p.Remove("/a"))
	write(t, p, "/b", "1234567890", false)
}

func TestTruncateAndReadAt(t *testing.T) {
	disk := fault.NewCrashFS(1)
	p := disk.Process(-1)
	f := write(t, p, "/db", "0123456789", true)
	must(t, p.SyncDir("/"), f.Truncate(3), f.Truncate(5))
	if got := content(t, p, "/db"); got != "012\x00\x00" {
		t.Fatalf("%q", got)
	}
	disk.PowerLoss(fault.Survival{})
	if got := content(t, disk.Process(-1), "/db"); got != "0123456789" {
		t.Fatalf("an unsynced truncation survived: %q", got)
	}
}
