package cloudtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// Faults are the checks of a plugin against a network and a service that fail.
type Faults struct {
	// Open makes a store of the proxy's URL, in a place of its own, with 3 attempts
	// and a stall timeout of StallTimeout.
	Open func(t *testing.T) objstore.Store
	// Proxy stands before the server.
	Proxy *Proxy
	// IsPut says that a request writes an object or completes an upload.
	IsPut func(Request) bool
	// Throttle and Broken are the service's ways to say "slow down" and "internal
	// error". A Throttle asks for a pause of one second.
	Throttle, Broken Action
	// Resumes says that the service's library goes on with a read that was cut, from
	// where it was and of the same version.
	Resumes bool
}

// StallTimeout of the stores that Faults opens.
const StallTimeout = 300 * time.Millisecond

// attempts of a call that may be repeated.
const attempts = 3

// Run runs every check as a subtest.
func (f Faults) Run(t *testing.T) {
	for name, check := range map[string]func(*faultRun){
		"CreateOnlySentOnce": checkCreateOnlySentOnce, "CreateOnlyUnderDeadline": checkDeadline, "PassingFaults": checkPassingFaults,
		"LastingFaults": checkLastingFaults, "Pause": checkPause, "Unreachable": checkUnreachable, "Completion": checkCompletion, "Storm": checkStorm,
		"CutReadOfAReplaced": checkCutReadOfAReplaced,
	} {
		t.Run(name, func(t *testing.T) {
			store := f.Open(t)
			f.Proxy.Take()
			check(&faultRun{T: t, Faults: f, store: store})
			f.Proxy.Take()
		})
	}
}

type faultRun struct {
	*testing.T
	Faults
	store objstore.Store
}

func (f *faultRun) create(ctx context.Context, key string, value []byte) error {
	_, err := f.store.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{value[:len(value)/2], value[len(value)/2:]}, CreateOnly: true})
	return err
}

func (f *faultRun) get(key string) ([]byte, error) {
	resp, err := f.store.GetRange(f.Context(), objstore.GetRangeRequest{Key: key, Length: -1})
	return resp.Data, err
}

// puts counts the writes since the last Take.
func (f *faultRun) puts() int {
	n := 0
	for _, r := range f.Proxy.Take() {
		if f.IsPut(r) {
			n++
		}
	}
	return n
}

// checkCreateOnlySentOnce spoils one request of a create-only put, in every way: it
// must have been the only one, and the error must say whether it may have landed.
func checkCreateOnlySentOnce(f *faultRun) {
	for name, c := range map[string]struct {
		do     Action
		want   error
		landed bool
	}{
		"reset":    {Reset, objstore.ErrUnknownOutcome, false},
		"cut":      {CutBody, objstore.ErrUnknownOutcome, false},
		"lost":     {LoseAnswer, objstore.ErrUnknownOutcome, true},
		"silence":  {Silence, objstore.ErrUnknownOutcome, false},
		"broken":   {f.Broken, objstore.ErrUnknownOutcome, false},
		"throttle": {f.Throttle, objstore.ErrThrottled, false},
	} {
		value := bytes.Repeat([]byte(name), 300_000)
		f.Proxy.Take()
		f.Proxy.Spoil(Rule{Times: 1, Do: c.do})
		began := time.Now()
		err := f.create(f.Context(), name, value)
		if n := f.puts(); n != 1 {
			f.Errorf("%s: a create-only put was sent %d times", name, n)
		}
		if !errors.Is(err, c.want) {
			f.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if errors.Is(err, objstore.ErrUnknownOutcome) && errors.Is(err, objstore.ErrThrottled) {
			f.Errorf("%s: both unknown and throttled: %v", name, err)
		}
		if took := time.Since(began); took > 20*StallTimeout {
			f.Errorf("%s: took %v", name, took)
		}
		again := f.create(f.Context(), name, value)
		// A server that refuses while the body is sent may close the connection before its
		// answer was read; on a busy machine many times in a row.
		lost := 0
		for ; lost < 50 && errors.Is(again, objstore.ErrUnknownOutcome); lost++ {
			time.Sleep(20 * time.Millisecond)
			again = f.create(f.Context(), name, value)
		}
		landed := errors.Is(again, objstore.ErrAlreadyExists)
		if mayHave := c.landed || lost > 0; landed && !mayHave || !landed && (c.landed || again != nil) {
			f.Errorf("%s: the next create: %v; the first one landed: %v", name, again, c.landed)
		}
		if got, err := f.get(name); err != nil || !bytes.Equal(got, value) {
			f.Errorf("%s: %d bytes came back, %v", name, len(got), err)
		}
	}
}

// checkDeadline ends the caller's context while the service is silent.
func checkDeadline(f *faultRun) {
	ctx, cancel := context.WithTimeout(f.Context(), StallTimeout/3)
	defer cancel()
	f.Proxy.Spoil(Rule{Times: 1, Do: Silence})
	err := f.create(ctx, "late", []byte("value"))
	if !errors.Is(err, objstore.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		f.Errorf("put: %v; want an unknown outcome and the context's error", err)
	}
	if n := f.puts(); n != 1 {
		f.Errorf("it was sent %d times", n)
	}
	ctx, cancel = context.WithTimeout(f.Context(), StallTimeout/3)
	defer cancel()
	f.Proxy.Spoil(Rule{Times: 1, Do: Silence})
	if _, err := f.store.Head(ctx, "late"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, objstore.ErrUnknownOutcome) {
		f.Errorf("head: %v; want the context's error alone", err)
	}
}

// reads are the calls that may be repeated, each on objects that it finds.
func (f *faultRun) reads(value []byte) map[string]func() error {
	return map[string]func() error{
		"get": func() error {
			got, err := f.get("kept")
			if err == nil && !bytes.Equal(got, value) {
				return fmt.Errorf("other bytes, %d of %d", len(got), len(value))
			}
			return err
		},
		"range": func() error {
			got, err := f.store.GetRange(f.Context(), objstore.GetRangeRequest{Key: "kept", Offset: 7, Length: 200_000})
			if err == nil && !bytes.Equal(got.Data, value[7:200_007]) {
				return errors.New("other bytes")
			}
			return err
		},
		"head": func() error { _, err := f.store.Head(f.Context(), "kept"); return err },
		"list": func() error {
			page, err := f.store.List(f.Context(), objstore.ListRequest{Prefix: "kept"})
			if err == nil && len(page.Objects) != 1 {
				return fmt.Errorf("%d objects", len(page.Objects))
			}
			return err
		},
		"put": func() error {
			_, err := f.store.Put(f.Context(), objstore.PutRequest{Key: "plain", Chunks: [][]byte{value}})
			return err
		},
		"delete": func() error {
			resp, err := f.store.DeleteBatch(f.Context(), []string{"absent"})
			return errors.Join(append(resp.Errors, err)...)
		},
	}
}

// checkCutReadOfAReplaced cuts the answers to a large read after half of the bytes of
// an object that is replaced then: none of them may be in the answer, though they had
// been read, and a plugin may have told its host of them.
func checkCutReadOfAReplaced(f *faultRun) {
	value := bytes.Repeat([]byte("0123456789abcdef"), 1_400_000/16)
	if _, err := f.store.Put(f.Context(), objstore.PutRequest{Key: "large", Chunks: [][]byte{value}}); err != nil {
		f.Fatal(err)
	}
	f.Proxy.Spoil(Rule{Times: attempts - 1, Do: func(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
		resp, err := forward()
		if err != nil {
			Reset(w, r, nil)
			return
		}
		defer resp.Body.Close()
		copyHeader(w, resp)
		half, _ := io.ReadAll(io.LimitReader(resp.Body, resp.ContentLength/2))
		if !f.Resumes {
			half = bytes.Repeat([]byte("x"), len(half))
		}
		_, _ = w.Write(half)
		_ = http.NewResponseController(w).Flush()
		Reset(w, r, nil)
	}})
	const offset, length = 7, 1_300_000
	for _, into := range [][]byte{nil, make([]byte, length)} {
		got, err := f.store.GetRange(f.Context(), objstore.GetRangeRequest{Key: "large", Offset: offset, Length: length, Into: into})
		if err != nil || !bytes.Equal(got.Data, value[offset:offset+length]) {
			f.Errorf("%d bytes, %v (%d requests)", len(got.Data), err, len(f.Proxy.Take()))
		}
	}
}

// throttleNow is Throttle without its pause.
func (f *faultRun) throttleNow(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
	f.Throttle(&noPause{ResponseWriter: w}, r, forward)
}

type noPause struct{ http.ResponseWriter }

func (n *noPause) WriteHeader(status int) {
	n.Header().Del("Retry-After")
	n.ResponseWriter.WriteHeader(status)
}

// checkPassingFaults spoils all attempts but the last of what may be repeated.
func checkPassingFaults(f *faultRun) {
	value := bytes.Repeat([]byte("0123456789"), 60_000)
	if err := f.create(f.Context(), "kept", value); err != nil {
		f.Fatal(err)
	}
	for fault, do := range map[string]Action{
		"reset": Reset, "cut answer": CutAnswer, "silence": Silence, "broken": f.Broken, "throttle": f.throttleNow, "slow": Slow(StallTimeout / 3),
	} {
		times := attempts - 1
		if fault == "cut answer" {
			// An answer without a body arrives whole; the connection, kept for the
			// next call, ends after it and costs that call an attempt.
			times--
		}
		for name, read := range f.reads(value) {
			f.Proxy.Spoil(Rule{Times: times, Do: do})
			if err := read(); err != nil {
				f.Errorf("%s after %d times %s: %v (%d requests)", name, times, fault, err, len(f.Proxy.Take()))
			}
			f.Proxy.Take()
		}
	}
}

// checkLastingFaults spoils every attempt: a bounded number is made, and the error
// says which fault it was.
func checkLastingFaults(f *faultRun) {
	value := bytes.Repeat([]byte("0123456789"), 60_000)
	if err := f.create(f.Context(), "kept", value); err != nil {
		f.Fatal(err)
	}
	for _, c := range []struct {
		fault  string
		do     Action
		read   error
		writes error
	}{
		{"throttle", f.throttleNow, objstore.ErrThrottled, objstore.ErrThrottled},
		{"reset", Reset, objstore.ErrUnavailable, objstore.ErrUnknownOutcome},
		{"broken", f.Broken, objstore.ErrUnavailable, objstore.ErrUnknownOutcome},
	} {
		for name, read := range f.reads(value) {
			f.Proxy.Take()
			f.Proxy.Spoil(Rule{Times: 100, Do: c.do})
			err := read()
			n := len(f.Proxy.Take())
			write := name == "put" || name == "delete"
			want := c.read
			if write {
				want = c.writes
			}
			// The standard library repeats a read on its own when a connection that it
			// had kept turns out to be dead.
			if !errors.Is(err, want) || n < attempts || n > 2*attempts || write && n != attempts {
				f.Errorf("%s with lasting %s: %v after %d requests; want %v after %d", name, c.fault, err, n, want, attempts)
			}
		}
	}
}

// checkPause reads the pause that the service asks for.
func checkPause(f *faultRun) {
	f.Proxy.Spoil(Rule{Times: 1, Do: f.Throttle})
	err := f.create(f.Context(), "pause", []byte("x"))
	if throttled := new(objstore.ThrottledError); !errors.As(err, &throttled) || throttled.RetryAfter != time.Second {
		f.Errorf("%v; want a pause of one second in it", err)
	}
}

// checkUnreachable takes the service away: nothing was sent, so nothing is
// unknown.
func checkUnreachable(f *faultRun) {
	f.Proxy.Down()
	defer f.Proxy.Up(f.T)
	for range 2 { // the first one may meet a connection that has just ended
		err := f.create(f.Context(), "away", []byte("x"))
		if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknownOutcome) {
			f.Errorf("put: %v; want %v alone", err, objstore.ErrUnavailable)
		}
	}
	if _, err := f.get("away"); !errors.Is(err, objstore.ErrUnavailable) {
		f.Errorf("get: %v", err)
	}
}

// checkCompletion loses the answer to the completion of an upload.
func checkCompletion(f *faultRun) {
	parts, ok := objstore.Multipart(f.store)
	if !ok {
		return
	}
	id, err := parts.StartUpload(f.Context(), "parts")
	if err != nil {
		f.Fatal(err)
	}
	part, err := parts.PutPart(f.Context(), objstore.PutPartRequest{Key: "parts", Upload: id, Number: 1, Chunks: [][]byte{[]byte("value")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Proxy.Take()
	f.Proxy.Spoil(Rule{Times: 1, Do: LoseAnswer, Match: func(r *http.Request) bool {
		return f.IsPut(Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header})
	}})
	_, err = parts.CompleteUpload(f.Context(), objstore.CompleteUploadRequest{Key: "parts", Upload: id, Parts: []objstore.Part{part}, CreateOnly: true})
	if !errors.Is(err, objstore.ErrUnknownOutcome) {
		f.Errorf("complete: %v, want %v", err, objstore.ErrUnknownOutcome)
	}
	if n := f.puts(); n != 1 {
		f.Errorf("the completion was sent %d times", n)
	}
	if got, err := f.get("parts"); err != nil || string(got) != "value" {
		f.Errorf("%q, %v", got, err)
	}
}

// checkStorm has writers create keys, some of them the same, while every fourth
// request is spoilt: a key has one winner, what was acknowledged is there, what
// was refused for good is not its writer's, and no put was sent twice.
func checkStorm(f *faultRun) {
	const writers, rounds = 8, 25
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(4, 4))
	faults := []Action{Reset, CutBody, LoseAnswer, f.Broken, f.throttleNow, CutAnswer}
	f.Proxy.Spoil(Rule{Times: 1 << 30, Do: func(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
		mu.Lock()
		do := Pass
		if rng.IntN(4) == 0 {
			do = faults[rng.IntN(len(faults))]
		}
		mu.Unlock()
		do(w, r, forward)
	}})
	type result struct {
		key   string
		value []byte
		err   error
	}
	results := make([][]result, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				r := result{key: fmt.Sprintf("storm/%d", i*4+w/2), value: []byte(fmt.Sprintf("writer %d round %d", w, i))}
				r.err = f.create(f.Context(), r.key, r.value)
				results[w] = append(results[w], r)
			}
		})
	}
	wg.Wait()
	// One may have gone into a connection that the proxy had cut meanwhile.
	if n := f.puts(); n > writers*rounds || n < writers*rounds*9/10 {
		f.Errorf("%d puts were sent for %d calls", n, writers*rounds)
	}
	all := slices.Concat(results...)
	acked := map[string]string{}
	for _, r := range all {
		if r.err == nil {
			if other, ok := acked[r.key]; ok {
				f.Errorf("%s: created by %q and %q", r.key, other, r.value)
			}
			acked[r.key] = string(r.value)
		}
	}
	for _, r := range all {
		got, err := f.get(r.key)
		ours := err == nil && bytes.Equal(got, r.value)
		switch {
		case err != nil && !errors.Is(err, objstore.ErrNotExist):
			f.Errorf("get %s: %v", r.key, err)
		case r.err == nil && !ours:
			f.Errorf("%s: acknowledged to %q, it holds %q, %v", r.key, r.value, got, err)
		case r.err != nil && ours && !errors.Is(r.err, objstore.ErrUnknownOutcome):
			f.Errorf("%s: refused to %q with %v, and it is there", r.key, r.value, r.err)
		case errors.Is(r.err, objstore.ErrAlreadyExists) && err != nil:
			f.Errorf("%s: taken for %q, and it is not there", r.key, r.value)
		}
	}
}
