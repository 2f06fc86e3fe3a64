package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// initProducerID gives an idempotent producer its id. A transactional id gets
// the one code that every client takes for final: retriable ones make them ask
// for ever.
func (b *broker) initProducerID(ctx context.Context, r *kmsg.InitProducerIDRequest) (*kmsg.InitProducerIDResponse, error) {
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if r.TransactionalID != nil {
		b.log.Info("a client asked for transactions, which are not supported", "transactional_id", *r.TransactionalID)
		resp.ErrorCode = b.fail("InitProducerId", codeTransactionalID)
		return resp, nil
	}
	tctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	id, err := b.backend.AllocateWriter(tctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		b.log.Warn("allocate a producer id", "error", err)
		resp.ErrorCode = b.fail("InitProducerId", codeCoordinatorLoading) // every client asks again
		return resp, nil
	}
	// Also for a client that names its old id: a fresh one is a new epoch and more.
	resp.ProducerID, resp.ProducerEpoch = int64(id), 0
	return resp, nil
}
