package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A full disk: producers get errors, the log says what is wrong, and once there
// is space the same node, or a new process, goes on with everything that was
// acknowledged.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--wal-upload-interval", "1s", "--object-grace", "1s", "--object-cleanup-interval", "200ms")
	n.mountData("size=48m")
	filler := filepath.Join(n.dir, "data", "filler")
	if err := os.WriteFile(filler, make([]byte, 24<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.mink(nil, "topic", "create", "full")
	acked := n.fill("full")
	if acked == 0 {
		t.Fatal("nothing was acknowledged before the disk was full")
	}
	eventually(t, "the log says that the disk is full and what to do", func() bool {
		log := n.stderr.String()
		return strings.Contains(log, "no space left") && strings.Contains(log, "free")
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if n.ended() {
		t.Log("the node ended on the full disk; a new process goes on")
		n.start()
	}
	// Without a restart: the node goes on by itself.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k := n.franz(kgo.DefaultProduceTopic("full"))
	if err := k.ProduceSync(ctx, &kgo.Record{Value: []byte("after")}).FirstErr(); err != nil {
		t.Fatalf("there is space again and a record is not taken: %v\n%s", err, n.stderr)
	}
	n.hasRecords("full", acked)
	n.kill()
	n.start()
	n.hasRecords("full", acked)
	n.fsck()
	n.stop()
}

// fill produces numbered records of 256 KiB until one fails, and answers how
// many were acknowledged.
func (n *node) fill(topic string) (acked int) {
	n.t.Helper()
	k := n.franz(kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordDeliveryTimeout(5*time.Second), kgo.DisableIdempotentWrite())
	defer k.Close()
	for i := range 1000 {
		value := bytes.Repeat([]byte{byte(i)}, 256<<10)
		copy(value, fmt.Sprintf("record %d.", i))
		if err := k.ProduceSync(n.t.Context(), &kgo.Record{Value: value}).FirstErr(); err != nil {
			n.t.Logf("record %d: %v", i, err)
			return acked
		}
		acked++
	}
	n.t.Fatal("the disk is never full")
	return acked
}

// hasRecords: the acknowledged records are there in order; what failed may be.
func (n *node) hasRecords(topic string, acked int) {
	n.t.Helper()
	end := ends(n.t.Context(), n.t, n.client(), "kafka."+topic)[0]
	next := 0
	for _, r := range n.consume(topic, 0, 0, int64(end), kgo.FetchMaxPartitionBytes(4<<20)) {
		if next < acked && bytes.HasPrefix(r.Value, fmt.Appendf(nil, "record %d.", next)) {
			next++
		}
	}
	if next != acked {
		n.t.Fatalf("%d records were acknowledged, %d are there", acked, next)
	}
}

// ended reports that the process is gone.
func (n *node) ended() bool {
	select {
	case err := <-n.exited:
		n.exited <- err
		return true
	default:
		return false
	}
}

// flip turns a bit of the marker's first byte in the one object below dir that
// has it, and answers the object's path below dir.
func (n *node) flip(below string, marker []byte) string {
	n.t.Helper()
	return n.damage(below, marker, func(b []byte, at int) { b[at] ^= 4 })
}

// damage changes the one object below dir that has the marker, at which `at` is.
func (n *node) damage(below string, marker []byte, change func(b []byte, at int)) string {
	n.t.Helper()
	root := filepath.Join(n.dir, "data", "objects")
	var hit string
	err := filepath.WalkDir(filepath.Join(root, below), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := bytes.Index(b, marker)
		if at < 0 {
			return nil
		}
		if hit != "" {
			return fmt.Errorf("the marker is in %s and in %s", hit, path)
		}
		hit = path
		change(b, at)
		return os.WriteFile(path, b, 0o600)
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if hit == "" {
		n.t.Fatalf("no object below %s has the marker", below)
	}
	object, err := filepath.Rel(root, hit)
	if err != nil {
		n.t.Fatal(err)
	}
	return object
}

// One bit of one record is flipped in a stream object: who reads that record is
// told which object is bad, everything before, after and beside it is served,
// fsck finds it.
func TestFlippedBitInStreamObject(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--wal-upload-interval", "100ms")
	object, _ := n.damaged("data")
	n.start()
	n.servesOthers()
	n.namesDamage(object)
	n.refusesConsumer("bad")
	n.kcat([]byte("later\n"), "-P", "-t", "bad")
	if got := n.kcat(nil, "-C", "-t", "bad", "-o", "2", "-e", "-q"); string(got) != "later\n" {
		t.Errorf("what was written after the damage: %s", quote(got))
	}
	n.fsckFinds(object)
	n.stop()
}

// The same in a write-ahead object. What it holds has no checkpoint yet, so the
// bucket cannot know its writers: it refuses to open, and says why, until the
// object is what it was: it tries once a minute, and at a start. Other buckets of the same object are served.
func TestFlippedBitInWriteAheadObject(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--wal-upload-interval", "1h")
	object, repair := n.damaged("wal")
	n.start()
	n.servesOthers()
	n.namesDamage(object)
	n.refusesConsumer("bad")
	if _, errOut, err := n.tryKcat([]byte("not taken\n"), "-P", "-t", "bad", "-X", "message.timeout.ms=3000"); err == nil {
		t.Errorf("a bucket that is not open takes a record: %s", errOut)
	}
	n.fsckFinds(object)
	repair()
	n.kill()
	n.start()
	if got := n.wholeTopic("bad"); string(got) != "before the bad one\nthis record will be damaged\n" {
		t.Errorf("the repaired topic has %s", quote(got))
	}
	n.fsck()
	n.stop()
}

// damaged writes to two topics, kills the node and flips a bit of one record;
// it answers the object and what undoes the damage.
func (n *node) damaged(below string) (object string, repair func()) {
	n.t.Helper()
	n.start()
	n.kcat([]byte("before the bad one\n"), "-P", "-t", "bad")
	n.kcat([]byte("this record will be damaged\n"), "-P", "-t", "bad")
	n.kcat([]byte("sound\n"), "-P", "-t", "good")
	if below == "data" {
		n.uploaded()
	}
	n.kill()
	object = n.flip(below, []byte("this record will be damaged"))
	path := filepath.Join(n.dir, "data", "objects", object)
	b, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	at := bytes.Index(b, []byte("his record will be damaged")) - 1
	return object, func() {
		b[at] ^= 4
		if err := os.WriteFile(path, b, 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
}

// servesOthers: the sound topic is read and written.
func (n *node) servesOthers() {
	n.t.Helper()
	n.kcat([]byte("later\n"), "-P", "-t", "good")
	if got := n.wholeTopic("good"); string(got) != "sound\nlater\n" {
		n.t.Errorf("the sound topic has %s", quote(got))
	}
}

// namesDamage: a Flight reader's error names the object, soon.
func (n *node) namesDamage(object string) {
	n.t.Helper()
	began := time.Now()
	out, errOut, err := n.tryMink(nil, "read", "kafka.bad")
	if err == nil || !strings.Contains(string(errOut), strings.TrimRight(filepath.Base(object), "~")) || !strings.Contains(string(errOut), "corrupt") {
		n.t.Errorf("a read of the bad record: %v, %s%s: want corrupt and the object's name, %s", err, out, errOut, object)
	}
	if took := time.Since(began); took > 2*time.Minute {
		n.t.Errorf("the error came after %s", took)
	}
}

// refusesConsumer: a Kafka consumer that comes to the bad record gets an error,
// and no wrong bytes.
func (n *node) refusesConsumer(topic string) {
	n.t.Helper()
	k := n.franz(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(1)}}), kgo.KeepRetryableFetchErrors())
	defer k.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	fetches := k.PollFetches(ctx)
	if ctx.Err() != nil || fetches.Err() == nil {
		n.t.Errorf("a consumer at the damaged record gets %d records and the error %v", fetches.NumRecords(), fetches.Err())
	}
	fetches.EachRecord(func(r *kgo.Record) { n.t.Errorf("a consumer at the damaged record gets %q", r.Value) })
}

// fsckFinds: the deep check names the object, in text and in JSON.
func (n *node) fsckFinds(object string) {
	n.t.Helper()
	name := strings.TrimRight(filepath.Base(object), "~")
	out, errOut, err := n.tryMink(nil, "fsck", "--deep")
	if err == nil || !strings.Contains(string(out), name) || !strings.Contains(string(out), "corrupt") {
		n.t.Errorf("fsck --deep: %v, %s%s: want object %s as corrupt", err, out, errOut, object)
	}
	report := check(n.t.Context(), n.t, n.client())
	if report.Clean || len(report.Problems) == 0 {
		n.t.Errorf("the check's report is clean: %+v", report)
	}
	for _, p := range report.Problems {
		if !strings.Contains(p.Object, name) {
			n.t.Errorf("the check finds %+v, only %s is damaged", p, object)
		}
	}
}

// The damage is in what recovery itself reads: the end of a write-ahead object.
func TestDamagedWriteAheadIndex(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--wal-upload-interval", "1h", "--coordinator-tick", "200ms")
	n.start()
	n.kcat([]byte("kept\n"), "-P", "-t", "kept")
	n.kill()
	root := filepath.Join(n.dir, "data", "objects")
	var files []string
	err := filepath.WalkDir(filepath.Join(root, "wal"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("write-ahead objects: %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(b)
	damaged[len(damaged)-3] ^= 1
	if err := os.WriteFile(files[0], damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	name := strings.TrimRight(filepath.Base(files[0]), "~")
	n.launch()
	eventually(t, "the log names the damaged object", func() bool { return strings.Contains(n.stderr.String(), name) })
	// Repaired, from a backup say, everything is there.
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the recovery goes on", func() bool {
		out, _, err := n.tryKcat(nil, "-C", "-t", "kept", "-o", "beginning", "-e", "-q")
		return err == nil && string(out) == "kept\n"
	})
	n.fsck()
	n.stop()
}
