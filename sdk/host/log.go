package host

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

// A plugin that floods its output must not flood the node's log.
const (
	linesPerSecond = 200
	linesBurst     = 1000
	tailLines      = 8 // of the last output, for errors
	tailLineMax    = 300
)

// lineLogger turns a plugin's output into records. JSON lines as log/slog and
// hclog write them keep level, message and fields; others are messages.
type lineLogger struct {
	logger *slog.Logger
	limit  *rate.Limiter

	mu struct {
		sync.Mutex
		last    []string
		dropped int
		panics  bool // what follows is a trace
	}
}

func newLineLogger(logger *slog.Logger) *lineLogger {
	return &lineLogger{logger: logger, limit: rate.NewLimiter(linesPerSecond, linesBurst)}
}

// tail is the last output in one line, "" for none.
func (l *lineLogger) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.mu.last, " | ")
}

func (l *lineLogger) line(stream string, line []byte) {
	line = bytes.TrimRight(line, "\r")
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	level, message, attrs := parseLine(line)
	l.mu.Lock()
	l.remember(message, attrs)
	if l.mu.panics && attrs == nil {
		level = slog.LevelError
	}
	if !l.limit.Allow() {
		l.mu.dropped++
		l.mu.Unlock()
		return
	}
	dropped := l.mu.dropped
	l.mu.dropped = 0
	l.mu.Unlock()

	if dropped > 0 {
		l.logger.Warn("the plugin wrote too many lines; some were dropped", "dropped", dropped)
	}
	l.logger.LogAttrs(context.Background(), level, message, append(attrs, slog.String("stream", stream))...)
}

// remember keeps the line for tail: the last few, but of a trace its head.
func (l *lineLogger) remember(message string, attrs []slog.Attr) {
	for _, a := range attrs {
		if a.Key == "error" || a.Key == "err" {
			message += ": " + a.Value.String()
		}
	}
	if !l.mu.panics {
		l.mu.last = append(l.mu.last, cut(message, tailLineMax))
	}
	l.mu.last = l.mu.last[max(0, len(l.mu.last)-tailLines):]
	if strings.HasPrefix(message, "panic: ") || strings.HasPrefix(message, "fatal error: ") {
		l.mu.panics = true
	}
}

// parseLine never fails: what is no JSON record is its own message.
func parseLine(line []byte) (slog.Level, string, []slog.Attr) {
	var fields map[string]any
	if line[0] != '{' || json.Unmarshal(line, &fields) != nil {
		return slog.LevelInfo, strings.ToValidUTF8(string(line), "\uFFFD"), nil
	}
	message, ok := takeString(fields, "msg", "@message")
	if !ok {
		return slog.LevelInfo, strings.ToValidUTF8(string(line), "\uFFFD"), nil
	}
	level := slog.LevelInfo
	if text, ok := takeString(fields, "level", "@level"); ok {
		switch strings.ToLower(text) {
		case "trace":
			level = slog.LevelDebug
		default:
			if level.UnmarshalText([]byte(text)) != nil {
				level = slog.LevelInfo
			}
		}
	}
	delete(fields, "time")
	delete(fields, "@timestamp")
	attrs := make([]slog.Attr, 0, len(fields)+1)
	for k, v := range fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	return level, message, attrs
}

func takeString(fields map[string]any, names ...string) (string, bool) {
	for _, n := range names {
		if s, ok := fields[n].(string); ok {
			delete(fields, n)
			return s, true
		}
	}
	return "", false
}

// lines is one stream of output, cut into lines. One goroutine writes it.
type lines struct {
	log  *lineLogger
	name string
	part []byte // of the line that is not over; what passes lineMax is dropped
}

func (l *lineLogger) stream(name string) *lines { return &lines{log: l, name: name} }

// Write takes bytes as they come.
func (s *lines) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		piece, rest, ended := bytes.Cut(b, []byte{'\n'})
		s.part = append(s.part, piece[:min(len(piece), lineMax-len(s.part))]...)
		if ended {
			s.log.line(s.name, s.part)
			s.part = s.part[:0]
		}
		b = rest
	}
	return n, nil
}

// copy reads to the end.
func (s *lines) copy(r io.Reader) {
	_, err := io.Copy(s, r)
	s.log.line(s.name, s.part)
	s.part = nil
	if err != nil {
		s.log.logger.Debug("reading the plugin's output ended early", "stream", s.name, "error", err)
	}
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
