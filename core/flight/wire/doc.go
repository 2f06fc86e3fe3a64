// Package wire reads what Flight clients send in opaque fields, and trusts none of it:
// JSON bodies, strictly, and the Arrow schema messages that streams begin with.
package wire
