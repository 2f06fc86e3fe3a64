package kvplan

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/sdk/mink"
)

func file(epoch mink.LeaderEpoch, number uint64) File {
	return File{Epoch: epoch, Number: number, Nonce: 5, Content: ContentID{1: byte(number)}, Size: 100}
}

// A model that remembers every file ever given up: the bucket, which remembers
// none, never takes one back, and never gives up one that it names.
func TestNoFileComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b *Bucket
		epoch, number, offset := mink.LeaderEpoch(1), uint64(0), mink.Offset(0)
		gone := map[File]bool{}
		var all []File // ever committed
		for range rapid.IntRange(1, 30).Draw(t, "commits") {
			if rapid.IntRange(0, 4).Draw(t, "move") == 0 {
				epoch, number = epoch+1, 0
			}
			offset += mink.Offset(rapid.IntRange(0, 3).Draw(t, "offset"))
			s := Snapshot{Epoch: epoch, Offset: offset}
			for range rapid.IntRange(1, 3).Draw(t, "new") {
				number += uint64(rapid.IntRange(1, 2).Draw(t, "step"))
				s.Files = append(s.Files, file(epoch, number))
			}
			lost := false
			for range rapid.IntRange(0, 3).Draw(t, "old") {
				if len(all) > 0 {
					f := rapid.SampledFrom(all).Draw(t, "file")
					s.Files = append(s.Files, f)
					lost = lost || gone[f]
				}
			}
			if s.Check() != nil {
				continue // one of them twice
			}
			err := b.CheckFiles(s)
			if lost != (err != nil) || lost && !errors.Is(err, mink.ErrConflict) {
				t.Fatalf("names a file that was given up: %v, verdict: %v", lost, err)
			}
			if lost {
				continue
			}
			after, dropped := b.Add(s, rapid.IntRange(1, 3).Draw(t, "retain"))
			for _, f := range dropped {
				if after.Names(f) || gone[f] {
					t.Fatalf("%s is given up and named, or given up twice", f)
				}
				gone[f] = true
			}
			all = append(all, s.Files...)
			for _, f := range all {
				if after.Names(f) == gone[f] {
					t.Fatalf("%s: named %v, given up %v", f, after.Names(f), gone[f])
				}
			}
			b = after
			if err := b.Validate(); err != nil {
				t.Fatal(err)
			}
			if again, ok := b.Committed(s.Head()); !ok || again.ID != b.LastID {
				t.Fatal("the snapshot is not found by its head")
			}
		}
	})
}

func TestAddLeavesTheReceiver(t *testing.T) {
	b, _ := (*Bucket)(nil).Add(Snapshot{Epoch: 1, Files: []File{file(1, 1)}}, 2)
	b, _ = b.Add(Snapshot{Epoch: 1, Files: []File{file(1, 2)}}, 2)
	was := b.Snapshots[0].ID
	b.Add(Snapshot{Epoch: 1, Files: []File{file(1, 3)}}, 1)
	if len(b.Snapshots) != 2 || b.Snapshots[0].ID != was || b.Number != 2 {
		t.Fatalf("%+v", b)
	}
	if bound, ok := b.TrimBound(); !ok || bound != 0 {
		t.Fatal(bound, ok)
	}
	if _, ok := (*Bucket)(nil).TrimBound(); ok {
		t.Fatal("a bucket without snapshots has a bound")
	}
}

func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := BucketFile{
			Bucket: mink.BucketRef{Table: mink.TableID(rapid.Int64Min(1).Draw(t, "table")), Partition: mink.PartitionID(rapid.Int64Min(1).Draw(t, "partition")), Index: rapid.Int32Min(0).Draw(t, "index")},
			File:   File{Epoch: mink.LeaderEpoch(rapid.Int32Min(1).Draw(t, "epoch")), Number: rapid.Uint64().Draw(t, "number"), Nonce: rapid.Uint64().Draw(t, "nonce")},
		}
		copy(f.Content[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "content"))
		back, ok := ParseKey(f.Key())
		if !ok || back != f {
			t.Fatalf("%s became %+v", f.Key(), back)
		}
	})
	good := BucketFile{Bucket: mink.BucketRef{Table: 1, Partition: 2, Index: 3}, File: file(4, 5)}.Key()
	if good != "kv/1/2/3/4/00050000000000000000000000000000-0000000000000005-5" {
		t.Fatal(good)
	}
	for _, bad := range []string{"", "kv/", strings.TrimPrefix(good, "kv/"), good + "x", good + "/", strings.Replace(good, "/4/", "/04/", 1), strings.Replace(good, "-5", "-05", 1), strings.ToUpper(good), strings.Replace(good, "kv/1", "kv/x", 1)} {
		if _, ok := ParseKey(bad); ok {
			t.Errorf("%q is a key", bad)
		}
	}
}
