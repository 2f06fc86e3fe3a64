// Package ops is the HTTP port of a node: health, readiness, metrics, profiles.
// It owns no data: what it shows it asks of the functions it is given.
package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// stopTimeout is how long open requests have to end when the port closes.
const stopTimeout = 5 * time.Second

// Server answers the HTTP port.
type Server struct {
	logger   *slog.Logger
	registry *prometheus.Registry
	ready    func() (ok bool, reason string)
	kafka    *KafkaMetrics
	flight   *FlightMetrics
	mounts   map[string]http.Handler
}

// New makes a server. ready says whether the node serves, and if not why;
// figures is asked at every scrape.
func New(logger *slog.Logger, ready func() (bool, string), figures func() []Figure) *Server {
	s := &Server{logger: logger, registry: prometheus.NewRegistry(), ready: ready}
	s.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		figureCollector(figures),
	)
	s.kafka = newKafkaMetrics(s.registry)
	s.flight = newFlightMetrics(s.registry)
	return s
}

// Mount serves a handler below a path, such as "/iceberg", which it does not see. Call
// it before Serve.
func (s *Server) Mount(path string, h http.Handler) {
	if s.mounts == nil {
		s.mounts = map[string]http.Handler{}
	}
	s.mounts[path+"/"] = http.StripPrefix(path, h)
}

// Kafka is where the Kafka listener reports to.
func (s *Server) Kafka() *KafkaMetrics { return s.kafka }

// Flight is where the Flight listener reports to.
func (s *Server) Flight() *FlightMetrics { return s.flight }

// Handler serves:
//
//	/healthz   200 while the process lives
//	/readyz    200 when the node is registered and its buckets are open, else 503 and the reason
//	/metrics   Prometheus text
//	/debug/pprof/
//	and what was mounted
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if ok, reason := s.ready(); !ok {
			http.Error(w, "not ready: "+reason, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{ErrorLog: promLog{s.logger}}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	for path, h := range s.mounts {
		mux.Handle(path, h)
	}
	return mux
}

type promLog struct{ logger *slog.Logger }

func (l promLog) Println(v ...any) { l.logger.Error("metrics", "error", fmt.Sprint(v...)) }

// Serve answers on the listener until ctx is done, or the listener fails; it
// closes the listener and leaves nothing running.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, ended := context.WithCancel(ctx)
	defer ended()
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		done <- srv.Shutdown(stop)
	}()
	err := srv.Serve(l)
	ended()
	if late := <-done; late != nil { // open requests did not end in time
		err = errors.Join(err, srv.Close())
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("HTTP listener: %w", err)
	}
	return nil
}
