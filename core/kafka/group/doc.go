// Package group is the state machine of one classic consumer group: who is a
// member, which generation it is in, who is told what and when. It is pure: time
// comes in with every event, answers go out as values, member ids come from an
// injected generator. It does no I/O, holds no lock and starts nothing.
//
// Protocol metadata and assignments are opaque bytes: the members' leader
// assigns, the group only carries. So any protocol type works.
//
//	         first join               all rejoined, or time-out
//	Empty ---------------> Preparing ---------------------------> Completing
//	  ^                     ^    ^                                   |
//	  | no member left      |    | a member comes, goes, changes,    | the leader's
//	  +---------------------+    | or does not sync in time          | assignment
//	                             +----------------- Stable <---------+
//
// A Join or Sync that has to wait is known by the caller's Token; its answer
// comes from the event that decides it, as a Reply. Every token is answered
// exactly once, unless the caller abandons it first. The caller calls Tick when
// Deadline has come.
package group
