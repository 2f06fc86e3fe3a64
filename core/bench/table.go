package main

import (
	"fmt"
	"slices"
	"strings"
)

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// spread prints the median and the range.
func spread(v []float64, format string) string {
	if len(v) == 0 {
		return "-"
	}
	if len(v) == 1 {
		return fmt.Sprintf(format, v[0])
	}
	return fmt.Sprintf(format+" ("+format+".."+format+")", median(v), slices.Min(v), slices.Max(v))
}

func row(cells ...string) { fmt.Printf("| %s |\n", strings.Join(cells, " | ")) }

func header(cells ...string) {
	row(cells...)
	row(slices.Repeat([]string{"---"}, len(cells))...)
}

func printFloors(f *floors) {
	if f == nil {
		return
	}
	fmt.Printf("## Limits of the machine, median (range)\n\n")
	header("what", "figure")
	row("4 MiB writes, each fsynced, one file", spread(f.fsync, "%.0f")+" MB/s")
	row("64 KiB writes, each fsynced, one file", spread(f.fsync64, "%.0f")+" MB/s")
	row("512 B write + fsync", spread(f.emptySync, "%.2f")+" ms")
	row("4 MiB files as a directory store must publish them", spread(f.publish, "%.0f")+" MB/s")
	row("loopback TCP, one connection", spread(f.loopback, "%.0f")+" MB/s")
	row("loopback TCP, CPU of both ends", spread(f.tcpCPU, "%.2f")+" CPU-s/GB")
	fmt.Println()
}

// floorOf names the broker that the figures of `what` are divided by.
func floorOf(what string) string {
	if what == "fetch" {
		return "keep"
	}
	return "drop"
}

func (s *suite) printTable(what string, all []sample) {
	of := func(broker string, partitions int, get func(*result) float64) []float64 {
		var v []float64
		for _, x := range all {
			if x.What == what && x.Broker == broker && x.Partitions == partitions {
				v = append(v, get(x.result))
			}
		}
		return v
	}
	fmt.Printf("## Kafka %s, %d-byte records, acks=all, n = %d, median (range)\n\n", what, s.load.record, s.n)
	header("broker", "partitions", "records/s", "MB/s", "broker CPU-s/GB", "without the simulated store", "/ "+floorOf(what), "/ kfake", "PUTs/GB")
	for _, b := range s.brokers {
		for _, k := range s.partitions {
			mb := of(b.name, k, (*result).mbPerSecond)
			if len(mb) == 0 {
				continue
			}
			ratio := func(to string) string {
				base := median(of(to, k, (*result).mbPerSecond))
				if base == 0 {
					return "-"
				}
				return fmt.Sprintf("%.2f", median(mb)/base)
			}
			puts, own := "-", "-"
			if b.name == nodeName {
				own = spread(of(b.name, k, (*result).ownCPUPerGB), "%.2f")
			}
			if p := median(of(b.name, k, (*result).putsPerGB)); p > 0 {
				puts = fmt.Sprintf("%.0f", p)
			}
			row(b.name, fmt.Sprint(k), fmt.Sprintf("%.0f", median(of(b.name, k, (*result).recordsPerS))), spread(mb, "%.0f"),
				spread(of(b.name, k, (*result).cpuPerGB), "%.2f"), own, ratio(floorOf(what)), ratio("kfake"), puts)
		}
	}
	fmt.Println()
}
