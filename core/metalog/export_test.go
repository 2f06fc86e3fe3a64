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
