// Package kafka is the Kafka listener: it speaks Kafka's wire protocol over one
// node and owns no data. It looks like a Kafka 3.9 broker without transactions
// and ACLs.
//
//	            reader (one goroutine)                 writer (one goroutine)
//	socket --> frame --> parse --> append (Produce) --> queue --> answer --> socket
//	                                                   bounded    waits for durability,
//	                                                              runs every other request
//
// The reader appends Produce requests in the order they arrive and goes on
// reading; the writer answers in request order and waits there for durability.
// Every other request runs in the writer, after all that came before it: a
// connection behaves as Kafka's, which serves one request at a time, except that
// appends do not wait for earlier answers. A Produce behind a request that
// changes topics waits for it.
//
// A request is answered, or the connection is closed with a logged reason. What
// the package promises clients, version by version, is the table in versions.go;
// which error means what is in errors.go.
//
// Consumer groups that the metadata gives to this node are coordinated here
// (groups.go): members in memory, by the state machine of package group; offsets
// in the metadata.
//
// Topic t is table <database>.t with the four columns of a topic; a topic named
// db.t is table t of database db. Typed tables, tables with a primary key and
// partitioned tables are not topics.
package kafka
