package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// These tests check requests against Amazon's documentation where no server for
// tests has the feature. They were not run against the cloud.

// recorder answers every request with one function and keeps them.
type recorder struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte
	answer   func(http.ResponseWriter, *http.Request)
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	r.requests, r.bodies = append(r.requests, req), append(r.bodies, body)
	r.mu.Unlock()
	r.answer(w, req)
}

func (r *recorder) last() (*http.Request, []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[len(r.requests)-1], r.bodies[len(r.bodies)-1]
}

const emptyList = `<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>`

func anyAnswer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"etag"`)
	switch {
	case r.URL.Query().Has("uploads"):
		fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>`)
	case r.URL.Query().Has("list-type"):
		fmt.Fprint(w, emptyList)
	}
}

func wantHeaders(t *testing.T, r *http.Request, headers ...string) {
	t.Helper()
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if got := r.Header.Get(name); got != value {
			t.Errorf("%s %s: %s is %q, want %q", r.Method, r.URL, name, got, value)
		}
	}
}

func TestCreateOnlyRequest(t *testing.T) {
	rec := &recorder{answer: anyAnswer}
	server := httptest.NewServer(rec)
	defer server.Close()
	s := mustOpen(t, "s3://bucket/p", optionsFor(server.URL, "storage_class=INTELLIGENT_TIERING"))
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{[]byte("1234"), []byte("56789")}, CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	r, body := rec.last()
	// 0xe3069283 is the CRC-32C of 123456789 (RFC 3720).
	wantHeaders(t, r, "If-None-Match: *", "X-Amz-Checksum-Crc32c: 4waSgw==", "Content-Length: 9", "X-Amz-Storage-Class: INTELLIGENT_TIERING", "If-Match: ", "X-Amz-Server-Side-Encryption: ")
	if r.URL.Path != "/bucket/p/k" || string(body) != "123456789" || r.Header.Get("X-Amz-Content-Sha256") == "UNSIGNED-PAYLOAD" {
		t.Errorf("%s with %q, payload %s", r.URL, body, r.Header.Get("X-Amz-Content-Sha256"))
	}
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", IfMatch: `"v1"`}); err != nil {
		t.Fatal(err)
	}
	r, _ = rec.last()
	wantHeaders(t, r, `If-Match: "v1"`, "If-None-Match: ")
}

// TestEncryptionRequest: SSE with KMS goes with every object that is written, in
// one put or in parts, as the headers of PutObject and CreateMultipartUpload.
func TestEncryptionRequest(t *testing.T) {
	rec := &recorder{answer: anyAnswer}
	server := httptest.NewServer(rec)
	defer server.Close()
	const key = "arn:aws:kms:us-east-1:111122223333:key/k"
	s := mustOpen(t, "s3://bucket", optionsFor(server.URL, "sse=aws:kms", "sse_kms_key_id="+key))
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	r, _ := rec.last()
	wantHeaders(t, r, "X-Amz-Server-Side-Encryption: aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id: "+key)
	parts, _ := objstore.Multipart(s)
	if _, err := parts.StartUpload(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	r, _ = rec.last()
	wantHeaders(t, r, "X-Amz-Server-Side-Encryption: aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id: "+key)

	rec.answer = answerOf(answer(http.StatusBadRequest, "KMS.DisabledException"))
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k"}); !errors.Is(err, objstore.ErrUnauthorized) || !strings.Contains(err.Error(), "sse_kms_key_id") {
		t.Error(err)
	}
}

func answerOf(a cloudtest.Action) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) { a(w, r, nil) }
}

// TestExpress plays a directory bucket: a session first, its token on every
// request, listings by whole directories, without order and start.
func TestExpress(t *testing.T) {
	names := []string{"p/wal/3", "p/wal/1", "p/wal/2", "p/wax", "p/wal/4"}
	rec := &recorder{}
	rec.answer = func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case q.Has("session"):
			fmt.Fprint(w, `<CreateSessionResult><Credentials><AccessKeyId>sk</AccessKeyId><SecretAccessKey>ss</SecretAccessKey><SessionToken>session-1</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>`)
		case q.Has("list-type"):
			if p := q.Get("prefix"); p != "" && !strings.HasSuffix(p, "/") || q.Has("start-after") {
				answer(http.StatusBadRequest, "InvalidRequest")(w, r, nil)
				return
			}
			half, next := names[:3], `<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>`
			if q.Has("continuation-token") {
				half, next = names[3:], ""
			}
			fmt.Fprint(w, `<ListBucketResult>`, next)
			for _, n := range half {
				fmt.Fprintf(w, `<Contents><Key>%s</Key><Size>1</Size></Contents>`, n)
			}
			fmt.Fprint(w, `</ListBucketResult>`)
		}
	}
	server := httptest.NewServer(rec)
	defer server.Close()
	s := mustOpen(t, "s3://wal--usw2-az1--x-s3/p", optionsFor(server.URL, "region=us-west-2"))
	if !rec.requests[0].URL.Query().Has("session") {
		t.Errorf("the first request is %s, want CreateSession", rec.requests[0].URL)
	}
	for _, r := range rec.requests[1:] {
		wantHeaders(t, r, "X-Amz-S3session-Token: session-1")
		if auth := r.Header.Get("Authorization"); !strings.Contains(auth, "Credential=sk/") || !strings.Contains(auth, "/us-west-2/s3express/") {
			t.Errorf("%s is signed %s", r.URL, auth)
		}
	}
	if c := s.Capabilities(); c.PutLatency >= 10*time.Millisecond {
		t.Errorf("latency class %v", c.PutLatency)
	}
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "wal/9", CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	r, _ := rec.last()
	wantHeaders(t, r, "If-None-Match: *", "X-Amz-S3session-Token: session-1")
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          string
		more          bool
	}{
		{"", "", 0, "wal/1 wal/2 wal/3 wal/4 wax", false},
		{"wal/", "", 2, "wal/1 wal/2", true},
		{"wal/", "wal/2", 2, "wal/3 wal/4", false},
		{"wal", "", 3, "wal/1 wal/2 wal/3", true},
		{"wa", "wal/4", 0, "wax", false},
	} {
		page, err := s.List(t.Context(), objstore.ListRequest{Prefix: c.prefix, StartAfter: c.after, Limit: c.limit})
		var got []string
		for _, o := range page.Objects {
			got = append(got, o.Key)
		}
		if err != nil || strings.Join(got, " ") != c.want || page.More != c.more {
			t.Errorf("%+v: %q, more %v, %v", c, got, page.More, err)
		}
	}
}

// TestHTTPSDoesNotSignPayload: the checksum in a signed header is enough there.
func TestHTTPSDoesNotSignPayload(t *testing.T) {
	rec := &recorder{answer: anyAnswer}
	server := httptest.NewTLSServer(rec)
	defer server.Close()
	cfg, err := readConfig("s3://bucket", optionsFor(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	client, err := cfg.client(t.Context(), server.Client())
	if err != nil {
		t.Fatal(err)
	}
	w := cloudstore.Write{Name: "k", Chunks: [][]byte{[]byte("123456789")}, Size: 9, CRC32C: 0xe3069283}
	if _, err := (&service{cfg: cfg, client: client}).Put(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	r, _ := rec.last()
	wantHeaders(t, r, "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD", "X-Amz-Checksum-Crc32c: 4waSgw==")
	if !strings.Contains(r.Header.Get("Authorization"), "x-amz-checksum-crc32c") {
		t.Errorf("the checksum is not signed: %s", r.Header.Get("Authorization"))
	}
}

// TestConcurrentWriteInProgress: S3 answers 409 when another write of the key is
// going on. Whether the key is taken then is looked up.
func TestConcurrentWriteInProgress(t *testing.T) {
	for _, taken := range []bool{true, false} {
		rec := &recorder{}
		rec.answer = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut:
				answer(http.StatusConflict, "ConditionalRequestConflict")(w, r, nil)
			case r.Method == http.MethodHead && !taken:
				w.WriteHeader(http.StatusNotFound)
			default:
				anyAnswer(w, r)
			}
		}
		server := httptest.NewServer(rec)
		s := mustOpen(t, "s3://bucket", optionsFor(server.URL))
		_, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", CreateOnly: true})
		want := objstore.ErrUnavailable
		if taken {
			want = objstore.ErrAlreadyExists
		}
		if !errors.Is(err, want) || errors.Is(err, objstore.ErrUnknownOutcome) {
			t.Errorf("taken %v: %v, want %v", taken, err, want)
		}
		if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", IfMatch: "v"}); !errors.Is(err, objstore.ErrConflict) {
			t.Errorf("swap: %v", err)
		}
		server.Close()
	}
}

// TestCorruptAnswer: bytes that do not have the checksum that S3 stored.
func TestCorruptAnswer(t *testing.T) {
	rec := &recorder{answer: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			fmt.Fprint(w, emptyList)
			return
		}
		w.Header().Set("X-Amz-Checksum-Crc32c", "4waSgw==")
		w.Header().Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		_, _ = io.Copy(w, bytes.NewReader([]byte("123456780")))
	}}
	server := httptest.NewServer(rec)
	defer server.Close()
	s := mustOpen(t, "s3://bucket", optionsFor(server.URL))
	if _, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: -1}); !errors.Is(err, objstore.ErrCorrupt) {
		t.Fatal(err)
	}
}

// TestAnswersOfProxies: what stands before the service answers in its place,
// without an error code of S3's. Behind it a write may go on: its fate is unknown,
// whatever code the library makes of the status.
func TestAnswersOfProxies(t *testing.T) {
	const page = "<html><body>Service Unavailable</body></html>"
	for name, c := range map[string]struct {
		do   cloudtest.Action
		want error
	}{
		"502 page":        {cloudtest.Answer(http.StatusBadGateway, page), objstore.ErrUnknownOutcome},
		"502 broken page": {cloudtest.Answer(http.StatusBadGateway, "<html><body><hr>nginx</body></html>"), objstore.ErrUnknownOutcome},
		"503 page":        {cloudtest.Answer(http.StatusServiceUnavailable, page), objstore.ErrUnknownOutcome},
		"503 titled page": {cloudtest.Answer(http.StatusServiceUnavailable, "<html><head><title>503 Service Unavailable</title></head><body>503</body></html>"), objstore.ErrUnknownOutcome},
		"503 broken page": {cloudtest.Answer(http.StatusServiceUnavailable, "<html><body><hr>nginx</body></html>"), objstore.ErrUnknownOutcome},
		"503 text":        {cloudtest.Answer(http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers. reset reason: connection termination"), objstore.ErrUnknownOutcome},
		"503 nothing":     {cloudtest.Answer(http.StatusServiceUnavailable, ""), objstore.ErrUnknownOutcome},
		"504 nothing":     {cloudtest.Answer(http.StatusGatewayTimeout, ""), objstore.ErrUnknownOutcome},
		"503 of S3":       {answer(http.StatusServiceUnavailable, "ServiceUnavailable"), objstore.ErrThrottled},
		"429":             {answer(http.StatusTooManyRequests, "TooManyRequests"), objstore.ErrThrottled},
		"429 nothing":     {cloudtest.Answer(http.StatusTooManyRequests, ""), objstore.ErrThrottled},
		"507":             {cloudtest.Answer(http.StatusInsufficientStorage, ""), objstore.ErrNoSpace},
		"501":             {answer(http.StatusNotImplemented, "NotImplemented"), objstore.ErrUnimplemented},
		"checksum":        {answer(http.StatusBadRequest, "BadDigest"), objstore.ErrCorrupt},
		"no such bucket":  {answer(http.StatusNotFound, "NoSuchBucket"), objstore.ErrUnavailable},
		"another service": {cloudtest.Answer(http.StatusNotFound, page), objstore.ErrInvalid},
	} {
		rec := &recorder{}
		rec.answer = func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				c.do(w, r, nil)
				return
			}
			anyAnswer(w, r)
		}
		server := httptest.NewServer(rec)
		s := mustOpen(t, "s3://bucket", optionsFor(server.URL))
		before := len(rec.requests)
		_, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{[]byte("v")}, CreateOnly: true})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		for _, other := range []error{objstore.ErrUnknownOutcome, objstore.ErrThrottled} {
			if errors.Is(err, other) && !errors.Is(c.want, other) {
				t.Errorf("%s: %v is %v too", name, err, other)
			}
		}
		if n := len(rec.requests) - before; n != 1 {
			t.Errorf("%s: %d requests", name, n)
		}
		server.Close()
	}
}

// TestContextEndsInPause: between two attempts too, the error is the context's.
func TestContextEndsInPause(t *testing.T) {
	rec := &recorder{answer: anyAnswer}
	server := httptest.NewServer(rec)
	defer server.Close()
	s := mustOpen(t, "s3://bucket", optionsFor(server.URL))
	rec.answer = answerOf(answer(http.StatusServiceUnavailable, "SlowDown", "Retry-After: 2"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Head(ctx, "k")
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, objstore.ErrThrottled) {
		t.Fatal(err)
	}
}
