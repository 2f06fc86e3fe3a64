package cloudstore

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// TestChunksReadAsOne compares with the standard library's reader over the same
// bytes, through random reads and seeks.
func TestChunksReadAsOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		var chunks [][]byte
		for range rng.IntN(6) {
			c := make([]byte, rng.IntN(5))
			for i := range c {
				c[i] = byte(rng.IntN(256))
			}
			chunks = append(chunks, c)
		}
		whole := bytes.Join(chunks, nil)
		ours, theirs := NewChunks(chunks), bytes.NewReader(whole)
		for range 20 {
			switch rng.IntN(3) {
			case 0:
				offset, whence := int64(rng.IntN(len(whole)+3)-1), rng.IntN(3)
				if whence == io.SeekEnd {
					offset = -offset
				}
				at, _ := theirs.Seek(0, io.SeekCurrent)
				want, err := theirs.Seek(offset, whence)
				if err != nil || want > int64(len(whole)) { // past the end is none of ours
					_, _ = theirs.Seek(at, io.SeekStart)
					if _, err := ours.Seek(offset, whence); err == nil {
						t.Fatalf("seek %d from %d, whence %d of %d bytes", offset, at, whence, len(whole))
					}
					continue
				}
				if got, err := ours.Seek(offset, whence); err != nil || got != want {
					t.Fatalf("seek %d, %d: %d, %v, want %d", offset, whence, got, err, want)
				}
			case 1:
				n := rng.IntN(7)
				a, b := make([]byte, n), make([]byte, n)
				_, errA := io.ReadFull(ours, a)
				_, errB := io.ReadFull(theirs, b)
				if !bytes.Equal(a, b) || !errors.Is(errA, errB) {
					t.Fatalf("read %d: %x, %v, want %x, %v", n, a, errA, b, errB)
				}
			case 2:
				if ours.Len() != theirs.Len() {
					t.Fatalf("%d bytes left, want %d", ours.Len(), theirs.Len())
				}
			}
		}
		rest, _ := io.ReadAll(theirs)
		var out bytes.Buffer
		if n, err := ours.WriteTo(&out); err != nil || n != int64(len(rest)) || !bytes.Equal(out.Bytes(), rest) {
			t.Fatalf("write the rest: %x, %v, want %x", out.Bytes(), err, rest)
		}
	}
}

// TestReadAllTellsOfWhatIsThere reads through a connection that ends, and again.
func TestReadAllTellsOfWhatIsThere(t *testing.T) {
	whole := bytes.Repeat([]byte("mink"), (3*filledStep+100)/4)
	data := make([]byte, len(whole))
	var told []int64
	filled := func(n int64) {
		told = append(told, n)
		if !bytes.Equal(data[:n], whole[:n]) {
			t.Errorf("%d bytes are told of and not there", n)
		}
	}
	cut := io.LimitReader(bytes.NewReader(whole), 2*filledStep+5)
	if n, err := readAll(cut, data, filled); n != 2*filledStep+5 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := readAll(bytes.NewReader(whole), data, filled); n != len(whole) || err != nil || !bytes.Equal(data, whole) {
		t.Errorf("%d, %v", n, err)
	}
	if want := []int64{0, filledStep, 2 * filledStep, 0, filledStep, 2 * filledStep, 3 * filledStep}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if n, err := readAll(bytes.NewReader(whole), data[:0], filled); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := readAll(bytes.NewReader(whole), data, nil); n != len(whole) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestWholeText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc": "abc", "\u00fc": "\u00fc", "a\u00fc"[:2]: "a", "\U0001f9a6"[:3]: "", "a\ufffdb": "a\ufffdb", "a\xffb": "a",
	} {
		if got := wholeText(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	at := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for in, want := range map[string]time.Duration{"": 0, "3": 3 * time.Second, "-3": 0, "soon": 0, at: time.Hour, "Mon, 02 Jan 2006 15:04:05 GMT": 0} {
		if got := RetryAfter(http.Header{"Retry-After": {in}}); got > want || got < want-time.Minute {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"s3://b", "s3://b/p", "s3://b/p/", "s3://b//p", "s3:///", "s3://b?x=y", "s3://u:p@b/x", "s3://b/" + strings.Repeat("p", 130), "://", "s3://b/\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		l, err := ParseURI(uri, "s3://BUCKET", "s3")
		if err != nil {
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if l.Host == "" || strings.ContainsAny(l.Host, "/?#:") || l.Path != "" && objstore.ValidateKey(l.Path) != nil || len(l.Path) > prefixMax {
			t.Fatalf("%q gives %+v", uri, l)
		}
		if again, err := ParseURI("s3://"+l.Host+"/"+l.Path, "", "s3"); err != nil || again != l {
			t.Fatalf("%+v again is %+v, %v", l, again, err)
		}
	})
}

// TestFlightKnowsWhatLeft: over http and https, a request that a server has seen
// may have left, whatever became of it; one for which there was no connection, or
// one that had died, has not, and will not.
func TestFlightKnowsWhatLeft(t *testing.T) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			server := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/cut" {
					_, _ = io.Copy(io.Discard, r.Body)
					panic(http.ErrAbortHandler)
				}
			}))
			defer server.Close()
			c, err := NewClient(Limits{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.base.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the server's certificate is of the test
			put := func(url string) *flight {
				ctx, f := watch(t.Context())
				req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				if resp, err := c.Do(req); err == nil {
					resp.Body.Close()
				}
				return f
			}
			if !put(server.URL + "/ok").Sent() {
				t.Error("an answered request has not left")
			}
			if f := put(server.URL + "/cut"); !f.Sent() || f.MetDead() {
				t.Error("a request that was cut has not left")
			}
			if put("http://127.0.0.1:1").Sent() {
				t.Error("a request to nobody has left")
			}
			c.base.CloseIdleConnections()
			f := new(flight)
			conn := &stallConn{Conn: discard{}, limit: time.Second}
			var given net.Conn = conn
			if name == "https" {
				given = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // never used
			}
			f.take(given)
			if f.Sent() || !f.MetDead() {
				t.Error("nothing was written, and it has left")
			}
			if _, err := conn.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a write after that: %v", err)
			}
		})
	}
}

// discard is a connection that takes everything.
type discard struct{ net.Conn }

func (discard) SetDeadline(time.Time) error     { return nil }
func (discard) Write(p []byte) (n int, _ error) { return len(p), nil }
func (discard) Close() error                    { return nil }
