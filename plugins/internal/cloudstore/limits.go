package cloudstore

import (
	"time"

	"github.com/mink-project/mink/sdk/plugin"
)

// Limits are the settings that every store has.
type Limits struct {
	Attempts       int           // most that a call which may be repeated makes; 0: 3
	ConnectTimeout time.Duration // to open a connection, TLS included; 0: 5 s
	StallTimeout   time.Duration // longest silence in a call before it fails; 0: 30 s
}

// LimitOptions are the options of Limits.
var LimitOptions = []plugin.Option{
	{Name: "attempts", Doc: "most attempts of a call that may be repeated; conditional writes are sent once", Default: "3"},
	{Name: "connect_timeout", Doc: "longest wait for a connection", Default: "5s"},
	{Name: "stall_timeout", Doc: "longest silence within a call before it fails", Default: "30s"},
}

// Limits reads the LimitOptions.
func (o *Options) Limits() Limits {
	return Limits{
		Attempts:       o.Number("attempts", 3, 1, 20),
		ConnectTimeout: o.Duration("connect_timeout", 5*time.Second, time.Millisecond),
		StallTimeout:   o.Duration("stall_timeout", 30*time.Second, time.Millisecond),
	}
}

func (l Limits) orDefault() Limits {
	if l.Attempts == 0 {
		l.Attempts = 3
	}
	if l.ConnectTimeout == 0 {
		l.ConnectTimeout = 5 * time.Second
	}
	if l.StallTimeout == 0 {
		l.StallTimeout = 30 * time.Second
	}
	return l
}
