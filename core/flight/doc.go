// Package flight is the Arrow Flight listener, in both of its ways:
//
//	generic  ListFlights, GetFlightInfo, GetSchema, DoPut and DoGet by path: any
//	         Flight client reads and writes tables without knowing Mink
//	native   pipelined idempotent appends to one bucket, scans with projection,
//	         tails, and every catalog and cluster action: what sdk/client speaks
//
// JSON bodies are those of sdk/api; docs/flight.md is their reference. Rows are
// Arrow IPC messages that travel between the client and the log as they are:
//
//	append  FlightData{header, body} --checked--> tablet.AppendArrow
//	scan    tablet.Message ---------------------> FlightData{header, body}
//
// Only what must change is decoded: batches of other schema versions, Kafka
// batches, batches that a scan cuts, and rows that belong to several buckets.
package flight
