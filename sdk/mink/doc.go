// Package mink holds the words that every part of Mink shares: identifiers,
// offsets and error classes. It imports nothing of Mink and does no I/O.
//
// Every identifier is its own Go type, so that a node epoch can never be passed
// where a leader epoch is meant. Identifiers start at 1; 0 means "none".
package mink
