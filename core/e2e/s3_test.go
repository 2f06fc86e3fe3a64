package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/plugins/cloudtest"
)

// s3Environment configures a node for the bucket mink of a server.
func s3Environment(s *cloudtest.Server) []string {
	return []string{
		"MINK_STORAGE_URI=s3://mink/node", "MINK_PLUGIN_DIR=" + os.Getenv("MINK_TEST_PLUGINS"),
		fmt.Sprintf("MINK_STORAGE_OPTIONS=endpoint=%s,access_key_id=%s,secret_access_key=%s", s.URL, cloudtest.AccessKeyID, cloudtest.SecretAccessKey),
	}
}

// Killing the S3 server under load loses nothing, doubles nothing, and the node
// serves again within two seconds of the server's return.
func TestObjectServerKilledUnderLoad(t *testing.T) {
	if !onS3() {
		t.Skip("only with an object server: scripts/e2e.sh s3")
	}
	const kills, partitions = 30, 3
	n := newNode(t, "--wal-upload-interval", "200ms")
	n.start()
	n.mink(nil, "topic", "create", "load", "--partitions", fmt.Sprint(partitions))
	n.mink(nil, "topic", "create", "probe")
	ctx := t.Context()
	k, err := kgo.NewClient(kgo.SeedBrokers(n.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	stop, halt := context.WithCancel(ctx)
	defer halt()
	writers := []*acks{{}, {}, {}}
	done := make(chan error, 1)
	go func() { done <- produceLoad(ctx, stop, k, "load", "w", writers) }()
	var worst time.Duration
	for i := range kills {
		n.s3.Kill()
		time.Sleep(time.Duration(i%5) * 100 * time.Millisecond) // calls meet a server that is away
		if err := n.s3.Start(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := k.ProduceSync(ctx, &kgo.Record{Topic: "probe", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(began))
		time.Sleep(100 * time.Millisecond)
	}
	halt()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	total := verifyLoad(t, n, "load", writers)
	t.Logf("%d kills of the S3 server: %d records, each once; an append after its return was acknowledged after at most %v", kills, total, worst)
	if total == 0 {
		t.Error("no records")
	}
	n.deepCheck()
	n.stop()
}
