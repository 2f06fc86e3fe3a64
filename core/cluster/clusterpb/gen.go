// Package clusterpb is the wire form of the metadata log's commands and of the
// state's snapshot. cluster.proto says what each message means.
package clusterpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative cluster.proto
