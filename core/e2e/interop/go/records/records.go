// Package records is what the Go clients have in common: the command line, the
// records, and the line that is printed for one. ../../README.md has the contract.
package records

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

// Record is what a record of the contract has. A nil key or value is absent.
type Record struct {
	Key, Value []byte
	Headers    []Header
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// At answers record i of a client.
func At(client string, i int) Record {
	r := Record{
		Key:     fmt.Appendf(nil, "k%d", i%97),
		Value:   fmt.Appendf(nil, "%d-%s", i, strings.Repeat("x", i%200)),
		Headers: []Header{{"client", []byte(client)}, {"n", strconv.AppendInt(nil, int64(i), 10)}},
	}
	switch {
	case i%100 == 50:
		r.Key, r.Value = fmt.Appendf(nil, "t%d", i), nil
	case i%10 == 9:
		r.Key = nil
	}
	return r
}

// Printer prints consumed records. Not safe for concurrent use.
type Printer struct {
	w *bufio.Writer
	// Count is the number of records printed.
	Count int
}

// Print prints one record.
func (p *Printer) Print(partition int32, offset int64, r Record) error {
	line := struct {
		Partition int32    `json:"partition"`
		Offset    int64    `json:"offset"`
		Key       *string  `json:"key"`
		Payload   *string  `json:"payload"`
		Headers   []string `json:"headers"`
	}{partition, offset, text(r.Key), text(r.Value), nil}
	for _, h := range r.Headers {
		line.Headers = append(line.Headers, h.Key, string(h.Value))
	}
	p.Count++
	return json.NewEncoder(p.w).Encode(line)
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

// Client is a Kafka client under test.
type Client struct {
	// Name goes into the header "client".
	Name string
	// Produce sends n records, of At, and returns when all are acknowledged.
	Produce func(ctx context.Context, broker, topic string, from, n int, codec string) error
	// Consume reads n records as a member of the group, prints them and commits.
	Consume func(ctx context.Context, broker, topic, group string, n int, p *Printer) error
}

// Main runs the client's command line and ends the process.
func (c Client) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	err := c.run(ctx, os.Args[1:])
	cancel()
	stop()
	if err != nil {
		log.Fatalf("%s: %v", c.Name, err)
	}
}

func (c Client) run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 6 && args[0] == "produce":
		from, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(args[4])
		if err != nil {
			return err
		}
		return c.Produce(ctx, args[1], args[2], from, n, args[5])
	case len(args) == 5 && args[0] == "consume":
		n, err := strconv.Atoi(args[4])
		if err != nil {
			return err
		}
		p := &Printer{w: bufio.NewWriter(os.Stdout)}
		if err := c.Consume(ctx, args[1], args[2], args[3], n, p); err != nil {
			return fmt.Errorf("after %d of %d records: %w", p.Count, n, err)
		}
		return p.w.Flush()
	}
	return fmt.Errorf("want: produce BROKER TOPIC FROM N CODEC, or consume BROKER TOPIC GROUP N")
}
