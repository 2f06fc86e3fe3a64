package ops

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Figure is one number of the node at the moment of a scrape. Names are
// mink_<subsystem>_<what>_<unit>; figures of one name have the same labels.
type Figure struct {
	Name, Help string
	Counter    bool // only grows; otherwise a gauge
	Labels     []string
	Values     []string // of Labels
	Value      float64
	Histogram  *Histogram // instead of Value
}

// Histogram is a distribution at the moment of a scrape.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64 // upper bound -> how many are not above it
}

type figureCollector func() []Figure

// Describe sends nothing: the figures are known only when they are asked for.
func (figureCollector) Describe(chan<- *prometheus.Desc) {}

func (c figureCollector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c() {
		desc := prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
		m, err := f.metric(desc)
		if err != nil {
			m = prometheus.NewInvalidMetric(desc, err)
		}
		out <- m
	}
}

func (f Figure) metric(desc *prometheus.Desc) (prometheus.Metric, error) {
	if h := f.Histogram; h != nil {
		return prometheus.NewConstHistogram(desc, h.Count, h.Sum, h.Buckets, f.Values...)
	}
	kind := prometheus.GaugeValue
	if f.Counter {
		kind = prometheus.CounterValue
	}
	return prometheus.NewConstMetric(desc, kind, f.Value, f.Values...)
}

// KafkaMetrics counts what the Kafka listener reports.
type KafkaMetrics struct {
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	bytesIn     prometheus.Counter
	bytesOut    prometheus.Counter
	errors      *prometheus.CounterVec
	inFlight    prometheus.Gauge
	connections prometheus.Gauge
	produced    prometheus.Counter
	fetched     prometheus.Counter
}

func newKafkaMetrics(r prometheus.Registerer) *KafkaMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &KafkaMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mink_kafka_requests_total", Help: "Requests answered, by API."}, []string{"api"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mink_kafka_request_seconds", Help: "From the last byte of a request read to the last byte of its response written, by API.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"api"}),
		bytesIn:     counter("mink_kafka_received_bytes_total", "Bytes of requests."),
		bytesOut:    counter("mink_kafka_sent_bytes_total", "Bytes of responses."),
		errors:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mink_kafka_errors_total", Help: "Error codes in responses, by API; code -1 is a closed connection."}, []string{"api", "code"}),
		inFlight:    gauge("mink_kafka_in_flight_requests", "Requests that await their answer."),
		connections: gauge("mink_kafka_connections", "Open connections."),
		produced:    counter("mink_kafka_produced_bytes_total", "Record bytes taken by Produce."),
		fetched:     counter("mink_kafka_fetched_bytes_total", "Record bytes sent by Fetch."),
	}
	r.MustRegister(m.requests, m.seconds, m.bytesIn, m.bytesOut, m.errors, m.inFlight, m.connections, m.produced, m.fetched)
	return m
}

// Request is one answered request.
func (m *KafkaMetrics) Request(api string, in, out int, took time.Duration) {
	m.requests.WithLabelValues(api).Inc()
	m.seconds.WithLabelValues(api).Observe(took.Seconds())
	m.bytesIn.Add(float64(in))
	m.bytesOut.Add(float64(out))
}

// Error is one error code in a response.
func (m *KafkaMetrics) Error(api string, code int16) {
	m.errors.WithLabelValues(api, strconv.Itoa(int(code))).Inc()
}

// InFlight adds to the requests that await their answer.
func (m *KafkaMetrics) InFlight(delta int) { m.inFlight.Add(float64(delta)) }

// Connections adds to the open connections.
func (m *KafkaMetrics) Connections(delta int) { m.connections.Add(float64(delta)) }

// RecordBytes counts record bytes.
func (m *KafkaMetrics) RecordBytes(produced, fetched int) {
	m.produced.Add(float64(produced))
	m.fetched.Add(float64(fetched))
}

// FlightMetrics counts what the Flight listener reports.
type FlightMetrics struct {
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	running  prometheus.Gauge
	appended prometheus.Counter
	sent     prometheus.Counter
}

func newFlightMetrics(r prometheus.Registerer) *FlightMetrics {
	m := &FlightMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mink_flight_calls_total", Help: "Ended calls, by Flight method and gRPC code."}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mink_flight_call_seconds", Help: "How long calls ran, by Flight method; streams run as long as their clients keep them.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"method"}),
		running:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "mink_flight_running_calls", Help: "Calls that run."}),
		appended: prometheus.NewCounter(prometheus.CounterOpts{Name: "mink_flight_appended_bytes_total", Help: "Bytes of batches taken by DoPut."}),
		sent:     prometheus.NewCounter(prometheus.CounterOpts{Name: "mink_flight_sent_bytes_total", Help: "Bytes of batches sent by DoGet and DoExchange."}),
	}
	r.MustRegister(m.calls, m.seconds, m.running, m.appended, m.sent)
	return m
}

// Call is one ended call.
func (m *FlightMetrics) Call(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Inc()
	m.seconds.WithLabelValues(method).Observe(took.Seconds())
}

// Calls adds to the calls that run.
func (m *FlightMetrics) Calls(delta int) { m.running.Add(float64(delta)) }

// RecordBytes counts bytes of batches.
func (m *FlightMetrics) RecordBytes(appended, sent int) {
	m.appended.Add(float64(appended))
	m.sent.Add(float64(sent))
}
