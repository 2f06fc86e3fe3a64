package metalog

// WithoutDedup makes every retry of a proposal look like a new one.
func WithoutDedup(r *Replica) { r.reuseNothing = true }

// Records and ParsePart open the snapshot format to the tests.
var (
	Records      = records
	NewPartBytes = func(recs [][]byte) (parts [][]byte, err error) {
		w := newPartWriter(func(p []byte) error { parts = append(parts, p); return nil })
		for _, r := range recs {
			if err := w.record(r); err != nil {
				return nil, err
			}
		}
		return parts, w.close()
	}
)

// SealParts frames bodies as the parts of one snapshot, with right checksums.
func SealParts(bodies ...[]byte) (parts [][]byte) {
	w := newPartWriter(func(p []byte) error { parts = append(parts, p); return nil })
	for i, b := range bodies {
		flags := byte(0)
		if i == len(bodies)-1 {
			flags = partLast
		}
		_ = w.flush(append(make([]byte, partHeaderBytes), b...), flags)
	}
	return parts
}
