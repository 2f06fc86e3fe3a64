package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// lines is a real file and where its second half begins.
func lines(t *testing.T, file string) (whole, first, second []byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	half := len(b) / 2
	half += bytes.IndexByte(b[half:], '\n') + 1
	return b, b[:half], b[half:]
}

// wholeTopic is every value of a topic's partition, a line each.
func (n *node) wholeTopic(topic string) []byte {
	n.t.Helper()
	return n.kcat(nil, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-X", "check.crcs=true")
}

func TestLinesComeBackThroughKcat(t *testing.T) {
	whole, first, second := lines(t, "testdata/airports.csv")
	inEveryWALState(t, story{
		first:  func(n *node) { n.kcat(first, "-P", "-t", "airports", "-X", "enable.idempotence=true") },
		second: func(n *node) { n.kcat(second, "-P", "-t", "airports", "-X", "enable.idempotence=true", "-z", "zstd") },
		check: func(n *node, when string) {
			if got := n.wholeTopic("airports"); !bytes.Equal(got, whole) {
				n.t.Fatalf("%s: %d bytes went in, %d came back: %s", when, len(whole), len(got), quote(got))
			}
		},
	})
}

// Word lists and logs that Debian ships, where this machine has them.
func TestDebianFilesComeBackThroughKcat(t *testing.T) {
	t.Parallel()
	var n *node
	for _, file := range []string{"/usr/share/dict/words", "/var/log/dpkg.log", "/usr/share/common-licenses/GPL-3", "/usr/share/perl/5.36/unicore/Name.pl"} {
		whole, err := os.ReadFile(file)
		if err != nil || len(whole) == 0 || len(whole) > 8<<20 {
			continue
		}
		whole = append(bytes.TrimRight(bytes.ReplaceAll(whole, []byte("\n\n"), []byte("\n \n")), "\n"), '\n') // kcat leaves out empty lines
		whole = bytes.ReplaceAll(whole, []byte("\n\n"), []byte("\n \n"))
		if n == nil {
			n = newNode(t)
			n.start()
		}
		topic := strings.ReplaceAll(filepath.Base(file), ".", "-")
		n.kcat(whole, "-P", "-t", topic, "-z", "lz4", "-X", "enable.idempotence=true")
		n.kill()
		n.start()
		if got := n.wholeTopic(topic); !bytes.Equal(got, whole) {
			t.Errorf("%s: %d bytes went in, %d came back: %s", file, len(whole), len(got), quote(got))
		}
	}
	if n == nil {
		t.Skip("none of the files is on this machine")
	}
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

var sizes = []int{1, 100, 10_000, 1 << 20, 10 << 20}

// Each codec and size through librdkafka.
func TestEveryCodecAndSizeThroughKcat(t *testing.T) {
	value := func(codec string, size int) []byte {
		return bytes.Repeat([]byte("mink-"+codec+"."), size/(6+len(codec))+1)[:size]
	}
	produce := func(n *node, sizes ...int) {
		for codec := range codecs {
			for _, size := range sizes {
				file := filepath.Join(n.dir, "value")
				if err := os.WriteFile(file, value(codec, size), 0o600); err != nil {
					n.t.Fatal(err)
				}
				n.kcat(nil, "-P", "-t", "sizes-"+codec, "-z", codec, "-X", "message.max.bytes=12000000", "-X", "enable.idempotence=true", file)
			}
		}
	}
	inEveryWALState(t, story{
		prepare: func(n *node) {
			for codec := range codecs {
				n.mink(nil, "topic", "create", "sizes-"+codec, "--config", "max.message.bytes=12582912")
			}
		},
		first:  func(n *node) { produce(n, sizes[:3]...) },
		second: func(n *node) { produce(n, sizes[3:]...) },
		check: func(n *node, when string) {
			for codec := range codecs {
				var want []byte
				for _, size := range sizes {
					want = append(append(want, value(codec, size)...), '|')
				}
				got := n.kcat(nil, "-C", "-t", "sizes-"+codec, "-o", "beginning", "-e", "-q", "-D", "|", "-X", "check.crcs=true",
					"-X", "fetch.message.max.bytes=20000000", "-X", "receive.message.max.bytes=100000000")
				if !bytes.Equal(got, want) {
					n.t.Errorf("%s, %s: %d bytes went in, %d came back", codec, when, len(want), len(got))
				}
			}
		},
	})
}

// Each codec and size through franz-go; the values do not compress, so that
// what is stored is as large as it looks.
func TestEveryCodecAndSizeThroughFranz(t *testing.T) {
	noise := make([]byte, 10<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise)
	produce := func(n *node, sizes ...int) {
		ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
		defer cancel()
		for codec, c := range codecs {
			k := n.franz(kgo.ProducerBatchCompression(c), kgo.ProducerBatchMaxBytes(12<<20), kgo.DefaultProduceTopic("f-"+codec))
			for _, size := range sizes {
				if err := k.ProduceSync(ctx, &kgo.Record{Value: noise[:size]}).FirstErr(); err != nil {
					n.t.Fatalf("%s, %d bytes: %v", codec, size, err)
				}
			}
			k.Close()
		}
	}
	inEveryWALState(t, story{
		prepare: func(n *node) {
			for codec := range codecs {
				n.mink(nil, "topic", "create", "f-"+codec, "--config", "max.message.bytes=12582912")
			}
		},
		first:  func(n *node) { produce(n, sizes[:3]...) },
		second: func(n *node) { produce(n, sizes[3:]...) },
		check: func(n *node, when string) {
			for codec := range codecs {
				got := n.consume("f-"+codec, 0, 0, int64(len(sizes)), kgo.FetchMaxBytes(64<<20), kgo.FetchMaxPartitionBytes(1<<20))
				for i, size := range sizes {
					if got[i].Offset != int64(i) || !bytes.Equal(got[i].Value, noise[:size]) {
						n.t.Errorf("%s, %s: record %d of %d bytes came back with %d at offset %d", codec, when, i, size, len(got[i].Value), got[i].Offset)
					}
				}
			}
		},
	})
}

// A record above max.message.bytes is refused and the connection goes on.
func TestTooLargeRecord(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.mink(nil, "topic", "create", "small", "--config", "max.message.bytes=1000")
	_, errOut, err := n.tryKcat(bytes.Repeat([]byte("x"), 2000), "-P", "-t", "small")
	if err == nil || !strings.Contains(string(errOut), "too large") {
		t.Fatalf("2000 bytes to a topic of at most 1000: %v, %s", err, errOut)
	}
	n.kcat([]byte("fits\n"), "-P", "-t", "small")
	if got := n.wholeTopic("small"); string(got) != "fits\n" {
		t.Fatalf("the topic has %s", quote(got))
	}
}

func TestHeadersKeysAndNulls(t *testing.T) {
	format := "%o %k=%s klen=%K vlen=%S h=%h\n"
	want := "0 k1=v1 klen=2 vlen=2 h=a=1,b=two,empty=\n1 =nokey klen=-1 vlen=5 h=\n2 k3= klen=2 vlen=-1 h=\n"
	inEveryWALState(t, story{
		first: func(n *node) {
			n.kcat([]byte("k1=v1\n"), "-P", "-t", "h", "-K=", "-H", "a=1", "-H", "b=two", "-H", "empty=")
		},
		second: func(n *node) {
			n.kcat([]byte("=nokey\n"), "-P", "-t", "h", "-K=", "-Z")
			n.kcat([]byte("k3=\n"), "-P", "-t", "h", "-K=", "-Z") // a tombstone: null value
		},
		check: func(n *node, when string) {
			if got := n.kcat(nil, "-C", "-t", "h", "-o", "beginning", "-e", "-q", "-f", format); string(got) != want {
				n.t.Errorf("%s:\n%s\nwant\n%s", when, got, want)
			}
		},
	})
}

// Keys choose partitions, partitions keep order, and every one comes back.
func TestSeveralPartitions(t *testing.T) {
	const partitions = 4
	produce := func(n *node, from, to int) {
		var in bytes.Buffer
		for i := from; i < to; i++ {
			fmt.Fprintf(&in, "key-%d:%d\n", i%17, i)
		}
		n.kcat(in.Bytes(), "-P", "-t", "parts", "-K:", "-p", "-1", "-z", "gzip")
	}
	inEveryWALState(t, story{
		prepare: func(n *node) { n.mink(nil, "topic", "create", "parts", "--partitions", fmt.Sprint(partitions)) },
		first:   func(n *node) { produce(n, 0, 1000) },
		second:  func(n *node) { produce(n, 1000, 2000) },
		check: func(n *node, when string) {
			of, last, next := map[string]string{}, map[string]int{}, map[string]int{}
			out := n.kcat(nil, "-C", "-t", "parts", "-o", "beginning", "-e", "-q", "-f", "%p %o %k %s\n")
			var rows int
			for line := range strings.Lines(string(out)) {
				var partition, key string
				var offset, i int
				if _, err := fmt.Sscanf(line, "%s %d %s %d", &partition, &offset, &key, &i); err != nil {
					n.t.Fatalf("%s: %q: %v", when, line, err)
				}
				if p, ok := of[key]; ok && p != partition {
					n.t.Fatalf("%s: key %s is in partitions %s and %s", when, key, p, partition)
				}
				if offset != next[partition] {
					n.t.Fatalf("%s: partition %s: offset %d where %d belongs", when, partition, offset, next[partition])
				}
				if l, ok := last[key]; ok && i != l+17 || !ok && i != rowOf(key) {
					n.t.Fatalf("%s: key %s: %d follows %d", when, key, i, l)
				}
				of[key], last[key] = partition, i
				next[partition]++
				rows++
			}
			if rows != 2000 || len(next) < 2 {
				n.t.Fatalf("%s: %d of 2000 records in %d partitions", when, rows, len(next))
			}
		},
	})
}

// rowOf is the first number with a key.
func rowOf(key string) (i int) {
	_, _ = fmt.Sscanf(key, "key-%d", &i)
	return i
}

func TestOffsetsByTimestamp(t *testing.T) {
	const base = int64(1_700_000_000_000)
	at := func(n *node, ms int64) string {
		return strings.TrimSpace(string(n.kcat(nil, "-Q", "-t", fmt.Sprintf("times:1:%d", ms))))
	}
	produce := func(n *node, from, to int64) {
		k := n.franz(kgo.DefaultProduceTopic("times"))
		defer k.Close()
		for i := from; i < to; i++ {
			r := &kgo.Record{Partition: 1, Value: []byte{byte(i)}, Timestamp: time.UnixMilli(base + 1000*i)}
			if err := k.ProduceSync(n.t.Context(), r).FirstErr(); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	inEveryWALState(t, story{
		prepare: func(n *node) { n.mink(nil, "topic", "create", "times", "--partitions", "2") },
		first:   func(n *node) { produce(n, 0, 5) },
		second:  func(n *node) { produce(n, 5, 10) },
		check: func(n *node, when string) {
			for _, c := range []struct {
				ms   int64
				want int64
			}{{0, 0}, {base, 0}, {base + 1, 1}, {base + 4000, 4}, {base + 4001, 5}, {base + 9000, 9}, {base + 9001, -1}} {
				if got, want := at(n, c.ms), fmt.Sprintf("times [1] offset %d", c.want); got != want {
					n.t.Errorf("%s: first record at or after base%+d ms: %q, want %q", when, c.ms-base, got, want)
				}
			}
			if got := string(n.kcat(nil, "-Q", "-t", "times:0:0")); !strings.Contains(got, "offset -1") {
				n.t.Errorf("%s: an empty partition by time: %q", when, got)
			}
			list := string(n.kcat(nil, "-L", "-J"))
			if !strings.Contains(list, `"topic":"times"`) || !strings.Contains(list, `"partition":1`) {
				n.t.Errorf("kcat -L: %s", list)
			}
		},
	})
}

func TestTopicLifecycle(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.mink(nil, "topic", "create", "gone", "--partitions", "3")
	if got := string(n.mink(nil, "topic", "describe", "gone")); !strings.Contains(got, "127.0.0.1") {
		t.Errorf("topic describe: %s", got)
	}
	n.kcat([]byte("x\n"), "-P", "-t", "gone", "-p", "2")
	n.mink(nil, "topic", "delete", "gone")
	if out, errOut, err := n.tryMink(nil, "topic", "describe", "gone"); err == nil || !strings.Contains(string(errOut), "gone") {
		t.Fatalf("describe of a deleted topic: %v, %s%s", err, out, errOut)
	}
	n.mink(nil, "topic", "create", "gone", "--partitions", "1")
	if got := n.wholeTopic("gone"); len(got) != 0 {
		t.Fatalf("a topic created again under the same name has old records: %s", quote(got))
	}
	out, errOut, err := n.tryMink(nil, "topic", "create", "c", "--config", "cleanup.policy=compacted")
	if err == nil || !strings.Contains(string(errOut), "compact,delete") {
		t.Fatalf("cleanup.policy=compacted: %v, %s%s", err, out, errOut)
	}
}
