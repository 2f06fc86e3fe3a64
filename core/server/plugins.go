package server

import (
	"github.com/mink-project/mink/core/ops"
	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/plugin"
)

// pluginFigures are one plugin's numbers for /metrics.
func pluginFigures(st pluginhost.Stats) []ops.Figure {
	labels, values := []string{"plugin"}, []string{st.Name}
	up := 0.0
	if st.PID != 0 {
		up = 1
	}
	figure := func(name, help string, counter bool, v float64) ops.Figure {
		return ops.Figure{Name: name, Help: help, Counter: counter, Labels: labels, Values: values, Value: v}
	}
	out := []ops.Figure{
		figure("mink_plugin_up", "1 while a process of the plugin serves.", false, up),
		figure("mink_plugin_pid", "Process id, 0 while none serves.", false, float64(st.PID)),
		figure("mink_plugin_restarts_total", "Processes started after the first.", true, float64(st.Restarts)),
		figure("mink_plugin_rss_bytes", "Resident memory of the process.", false, float64(st.RSS)),
		figure("mink_plugin_cpu_seconds_total", "User and system time of all its processes.", true, st.CPU.Seconds()),
		figure("mink_plugin_lost_slots", "Slots of shared memory, of 8, that calls without an answer keep the process from using.", false, float64(st.SharedLost)),
		figure("mink_plugin_in_flight_calls", "Calls that await their answer.", false, float64(st.InFlight)),
	}
	for _, o := range st.Operations {
		out = append(out, operationFigures(st.Name, o)...)
	}
	return out
}

func operationFigures(name string, o pluginhost.OperationStats) []ops.Figure {
	labels, values := []string{"plugin", "operation"}, []string{name, o.Name}
	counter := func(name, help string, v int64) ops.Figure {
		return ops.Figure{Name: name, Help: help, Counter: true, Labels: labels, Values: values, Value: float64(v)}
	}
	h := &ops.Histogram{Count: uint64(o.Calls), Sum: o.Time.Seconds(), Buckets: map[float64]uint64{}} //nolint:gosec // a count
	var below int64
	for i, n := range o.Latency {
		below += n
		h.Buckets[pluginhost.LatencyBound(i).Seconds()] = uint64(below) //nolint:gosec // a count
	}
	return []ops.Figure{
		{Name: "mink_plugin_call_seconds", Help: "How long calls took, by operation.", Labels: labels, Values: values, Histogram: h},
		counter("mink_plugin_failures_total", "Calls that failed; absent, taken and lost are answers.", o.Failures),
		counter("mink_plugin_sent_bytes_total", "Bytes of objects sent to the plugin.", o.Sent),
		counter("mink_plugin_received_bytes_total", "Bytes of objects received from the plugin.", o.Received),
	}
}

// pluginStats are the same for mink cluster stats.
func (p *parts) pluginStats() []api.PluginStats {
	var out []api.PluginStats
	for _, st := range p.plugins.Stats() {
		row := api.PluginStats{
			Kind: st.Kind, Name: st.Name, Version: st.Version, Path: st.Path, PID: st.PID, Restarts: st.Restarts,
			RSSBytes: st.RSS, CPUSeconds: st.CPU.Seconds(), InFlight: st.InFlight, LastError: st.LastError,
		}
		for _, o := range st.Operations {
			if o.Calls == 0 {
				continue
			}
			row.Operations = append(row.Operations, api.PluginOperationStats{
				Name: o.Name, Calls: o.Calls, Failures: o.Failures, SentBytes: o.Sent, ReceivedBytes: o.Received, Seconds: o.Time.Seconds(),
				P50Ms: o.Quantile(0.5).Seconds() * 1000, P99Ms: o.Quantile(0.99).Seconds() * 1000,
			})
		}
		out = append(out, row)
	}
	return out
}

// settings are the configuration in effect, secrets hidden: of a plugin's options
// those that its manifest calls so.
func (p *parts) settings() map[string]string {
	all := p.cfg.Redacted()
	for _, s := range []struct {
		key, uri string
		options  Options
	}{{"storage_options", p.cfg.storageURI(), p.cfg.StorageOptions}, {"wal_options", p.cfg.walURI(), p.cfg.WALOptions}} {
		if in, err := p.plugins.FindStore(s.uri, s.options); err == nil {
			all[s.key] = s.options.redacted(in.Manifest.Secret)
		}
	}
	if in, err := p.plugins.FindCatalog(p.cfg.LakeCatalog, p.cfg.LakeCatalogOptions); err == nil {
		all["lake_catalog_options"] = p.cfg.LakeCatalogOptions.redacted(in.Manifest.Secret)
	}
	all["sinks"] = p.cfg.Sinks.redacted(func(sink, option string) bool {
		in, err := p.plugins.FindNamed(plugin.KindSink, p.cfg.Sinks[sink].Plugin, nil)
		return err != nil || in.Manifest.Secret(option)
	})
	return all
}
