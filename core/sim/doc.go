// Package sim runs whole nodes in virtual time and breaks everything around
// them: the close simulation.
//
//	Kafka producers, Go client, puts by path, operator
//	                 |  memnet: cuts, broken connections, lost answers, slow links
//	                 v
//	              Process = listeners + node + coordinator + metadata replica + peers   (many, some of one node id)
//	                 |  gate.Gate: crash, pause (a zombie), requests that outlive their sender
//	                 |  fault.Store, faultlog: lost answers, late writes, throttling, stalls
//	                 v
//	              memory store, memory metadata log                    (what is true)
//	                 ^
//	Model, Truth ----+  what was acknowledged is there, once, at its offset; what metadata names exists; ...
//	Compacted -------+  of a compacted topic the latest record of each key is; no offset has two records
//	Rows ------------'  what Flight clients wrote is there, once where they promise it, in their order
//
// A World lives inside a testing/synctest bubble: hours pass in seconds, and a
// goroutine that is left when the test ends fails it. Everything random comes
// from one seed; goroutines still interleave as the scheduler likes, so that a
// seed replays most failures and not all.
package sim
