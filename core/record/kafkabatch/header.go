package kafkabatch

import (
	"errors"

	"github.com/mink-project/mink/core/record"
)

// Options are what a topic and a request allow; see kafka.md 2.1.
type Options struct {
	MaxBytes      int   // bytes of the whole batch; 0: no limit
	Deep          bool  // decompress and walk compressed batches too
	RequireKeys   bool  // compacted topic: every record has a key (implies a walk)
	AllowZstd     bool  // Produce >= 7
	NowMs         int64 // the server's clock
	BeforeMaxMs   int64 // message.timestamp.before.max.ms; 0: any age
	AfterMaxMs    int64 // message.timestamp.after.max.ms; 0: any future
	LogAppendTime bool  // record timestamps are not looked at
	Transactions  bool  // accept the transactional bit
}

// Header checks a produced batch and fills the Mink header for it (client
// fields only). It changes the batch where Kafka does: a max timestamp that
// the walk proves wrong is corrected, with its CRC. d may be nil unless
// o.Deep or o.RequireKeys ask for a look inside compressed batches.
func Header(batch []byte, o *Options, d *Decoder) (record.Header, error) {
	return record.Header{}, errors.New("not built yet")
}

// Decoder decompresses batches and keeps its buffers; not for concurrent use.
type Decoder struct{}
