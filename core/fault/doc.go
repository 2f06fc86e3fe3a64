// Package fault breaks things on purpose, repeatably. It holds
//
//   - Store, a wrapper around any object store that delays, refuses, loses
//     responses, lands writes late, cuts pages and mangles bytes, by rules that a
//     test adds and removes while the store is used; with a Latency and no rules it
//     is a latency simulator;
//   - CrashFS, a file layer in memory that keeps after a power loss only what was
//     synced: data by a file sync, names by a directory sync.
//
// Random decisions depend on the seed and on the call (operation, key, how many
// times it was called), not on the order in which goroutines arrive, so that a
// schedule repeats as well as the caller's own does. Nothing here holds a mutex
// while it waits and all time goes through package time: it runs in a
// testing/synctest bubble.
package fault
