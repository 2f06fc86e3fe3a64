package e2e

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// walStates are how far the write-ahead log has become stream objects when the
// node is killed.
var walStates = []struct {
	name     string
	interval string // wal_upload_interval
	wait     bool   // until nothing waits for upload
}{
	{"not uploaded", "1h", false},
	{"half uploaded", "200ms", false},
	{"fully uploaded", "100ms", true},
}

// uploaded waits until every record is in a stream object.
func (n *node) uploaded() {
	n.t.Helper()
	eventually(n.t, "every record is in a stream object", func() bool {
		return n.figure("mink_log_cache_pinned_bytes") == 0
	})
}

func TestLinesComeBackThroughKcatAfterKill(t *testing.T) {
	airports, err := os.ReadFile("testdata/airports.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range walStates {
		t.Run(state.name, func(t *testing.T) {
			n := newNode(t, "--wal-upload-interval", state.interval)
			n.start()
			half := len(airports) / 2
			half += bytes.IndexByte(airports[half:], '\n') + 1
			n.kcat(airports[:half], "-P", "-t", "airports", "-X", "enable.idempotence=true")
			if state.wait {
				n.uploaded()
			}
			n.kcat(airports[half:], "-P", "-t", "airports", "-X", "enable.idempotence=true", "-z", "zstd")
			if state.wait {
				n.uploaded()
			}
			n.kill()
			n.start()
			got := n.kcat(nil, "-C", "-t", "airports", "-o", "beginning", "-e", "-q", "-X", "check.crcs=true")
			if !bytes.Equal(got, bytes.TrimRight(airports, "\n")) && !bytes.Equal(got, airports) {
				t.Fatalf("%d bytes went in, %d came back after kill -9: %s", len(airports), len(got), quote(got))
			}
			n.fsck()
			n.stop()
		})
	}
}

// fsck fails the test when the check finds a problem.
func (n *node) fsck() {
	n.t.Helper()
	n.mink(nil, "fsck", "--deep")
}

func TestEveryCodecAndSizeThroughKcat(t *testing.T) {
	n := newNode(t)
	n.start()
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		topic := "sizes-" + codec
		n.mink(nil, "topic", "create", topic, "--config", "max.message.bytes=12582912")
		var want []byte
		for _, size := range []int{1, 100, 10_000, 1 << 20, 10 << 20} {
			dir := t.TempDir()
			value := bytes.Repeat([]byte("mink-"+codec+"."), size/(6+len(codec))+1)[:size]
			file := dir + "/value"
			if err := os.WriteFile(file, value, 0o600); err != nil {
				t.Fatal(err)
			}
			n.kcat(nil, "-P", "-t", topic, "-z", codec, "-X", "message.max.bytes=12000000", "-X", "enable.idempotence=true", file)
			want = append(append(want, value...), '|')
		}
		got := n.kcat(nil, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-D", "|", "-X", "check.crcs=true", "-X", "fetch.message.max.bytes=20000000", "-X", "receive.message.max.bytes=100000000")
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes went in, %d came back", codec, len(want), len(got))
		}
	}
	n.kill()
	n.start()
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		got := n.kcat(nil, "-C", "-t", "sizes-"+codec, "-o", "beginning", "-e", "-q", "-f", "%S ", "-X", "receive.message.max.bytes=100000000")
		if strings.TrimSpace(string(got)) != "1 100 10000 1048576 10485760" {
			t.Errorf("%s after kill -9: sizes %q", codec, got)
		}
	}
	n.fsck()
}

func TestHeadersKeysAndNulls(t *testing.T) {
	n := newNode(t)
	n.start()
	n.kcat([]byte("k1=v1\n"), "-P", "-t", "h", "-K=", "-H", "a=1", "-H", "b=two", "-H", "empty=")
	n.kcat([]byte("=nokey\n"), "-P", "-t", "h", "-K=", "-Z")
	n.kcat([]byte("k3=\n"), "-P", "-t", "h", "-K=", "-Z") // a tombstone: null value
	format := "%o %k=%s klen=%K vlen=%S h=%h\n"
	want := "0 k1=v1 klen=2 vlen=2 h=a=1,b=two,empty=\n1 =nokey klen=-1 vlen=5 h=\n2 k3= klen=2 vlen=-1 h=\n"
	check := func(when string) {
		t.Helper()
		got := n.kcat(nil, "-C", "-t", "h", "-o", "beginning", "-e", "-q", "-f", format)
		if string(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s", when, got, want)
		}
	}
	check("before the kill")
	n.kill()
	n.start()
	check("after kill -9")
}

func TestOffsetsByTimestamp(t *testing.T) {
	n := newNode(t)
	n.start()
	n.mink(nil, "topic", "create", "times", "--partitions", "2")
	n.kcat([]byte("a\nb\nc\n"), "-P", "-t", "times", "-p", "1")
	got := string(n.kcat(nil, "-Q", "-t", "times:1:0", "-t", "times:0:0"))
	for _, want := range []string{"times [1] offset 0", "times [0] offset -1"} {
		if !strings.Contains(got, want) {
			t.Errorf("first offset at time 0: %q lacks %q", got, want)
		}
	}
	if got := string(n.kcat(nil, "-Q", "-t", "times:1:99999999999999")); !strings.Contains(got, "offset -1") && !strings.Contains(got, "offset 3") {
		t.Errorf("first offset at a time after the last record: %q", got)
	}
	list := string(n.kcat(nil, "-L", "-J"))
	if !strings.Contains(list, `"topic":"times"`) || !strings.Contains(list, `"id":1`) {
		t.Errorf("kcat -L: %s", list)
	}
	if got := string(n.mink(nil, "topic", "describe", "times")); !strings.Contains(got, "127.0.0.1") {
		t.Errorf("topic describe: %s", got)
	}
}

func TestTopicLifecycle(t *testing.T) {
	n := newNode(t)
	n.start()
	n.mink(nil, "topic", "create", "gone", "--partitions", "3")
	n.kcat([]byte("x\n"), "-P", "-t", "gone", "-p", "2")
	n.mink(nil, "topic", "delete", "gone")
	if out, errOut, err := try(t, nil, binary(t), "-b", "grpc://"+n.flight, "topic", "describe", "gone"); err == nil {
		t.Fatalf("describe of a deleted topic succeeds: %s%s", out, errOut)
	}
	n.mink(nil, "topic", "create", "gone", "--partitions", "1")
	got := n.kcat(nil, "-C", "-t", "gone", "-o", "beginning", "-e", "-q")
	if len(got) != 0 {
		t.Fatalf("a topic created again under the same name has old records: %s", quote(got))
	}
	out, errOut, err := try(t, nil, binary(t), "-b", "grpc://"+n.flight, "topic", "create", "c", "--config", "cleanup.policy=compact")
	if err == nil || !strings.Contains(string(errOut), "compact") {
		t.Fatalf("cleanup.policy=compact: %v, %s%s", err, out, errOut)
	}
}
