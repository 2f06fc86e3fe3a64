// Command moving is segmentio's kafka-go while partitions move: it writes, reads in a
// group and asks every broker for the metadata until its input ends, and then reads what is
// left. ../../README.md says what it prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	askEvery  = 50 * time.Millisecond
	dialLimit = time.Second
)

// line is what is printed of one thing that happened.
type line struct {
	What      string `json:"what"` // acknowledged, read, leaderless, failed
	Broker    string `json:"broker,omitempty"`
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     string `json:"value,omitempty"`
	Ms        int64  `json:"ms,omitempty"` // how long it was
	Error     string `json:"error,omitempty"`
}

type client struct {
	brokers      []string
	topic, group string

	mu   sync.Mutex // of what follows
	out  *json.Encoder
	owed map[string]bool // values that were acknowledged and not read
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("want: moving BROKER,... TOPIC GROUP")
	}
	c := &client{
		brokers: strings.Split(os.Args[1], ","), topic: os.Args[2], group: os.Args[3],
		out: json.NewEncoder(os.Stdout), owed: map[string]bool{},
	}
	if err := c.run(); err != nil {
		log.Fatal(err)
	}
}

func (c *client) run() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	partitions, err := c.partitions(ctx, c.brokers[0])
	if err != nil {
		return err
	}
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	var ask, write, read sync.WaitGroup
	for _, b := range c.brokers {
		ask.Go(func() { c.ask(asking, b) })
	}
	// As it is made by default: ten attempts, of what is not acknowledged in time.
	w := &kafka.Writer{
		Addr: kafka.TCP(c.brokers...), Topic: c.topic, RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
		Balancer:   kafka.BalancerFunc(func(m kafka.Message, of ...int) int { return of[int(m.Key[0])%len(of)] }),
		Completion: c.completed,
	}
	ended := make(chan struct{})
	for p := range partitions {
		write.Go(func() { c.write(ctx, w, byte(p), ended) })
	}
	read.Go(func() { c.read(ctx) })
	_, err = io.Copy(io.Discard, os.Stdin)
	close(ended)
	write.Wait()
	stopAsking()
	ask.Wait()
	for c.owes() > 0 {
		time.Sleep(askEvery)
	}
	stop()
	read.Wait()
	return errors.Join(err, w.Close())
}

func (c *client) print(l line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(l); err != nil {
		log.Fatal(err)
	}
	switch l.What {
	case "acknowledged":
		if _, read := c.owed[l.Value]; !read {
			c.owed[l.Value] = true
		}
	case "read":
		c.owed[l.Value] = false
	}
}

func (c *client) owes() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, owed := range c.owed {
		if owed {
			n++
		}
	}
	return n
}

// write sends one message after the other to one partition.
func (c *client) write(ctx context.Context, w *kafka.Writer, p byte, ended chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-ended:
			return
		default:
		}
		m := kafka.Message{Key: []byte{p}, Value: fmt.Appendf(nil, "%d-%d", p, i)}
		if err := w.WriteMessages(ctx, m); err != nil {
			c.print(line{What: "failed", Partition: int(p), Value: string(m.Value), Error: err.Error()})
			return
		}
	}
}

func (c *client) completed(messages []kafka.Message, err error) {
	if err != nil {
		return // the writer says so
	}
	for _, m := range messages {
		c.print(line{What: "acknowledged", Partition: m.Partition, Offset: m.Offset, Value: string(m.Value)})
	}
}

// read reads the topic in a group, and commits each message.
func (c *client) read(ctx context.Context) {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: c.brokers, GroupID: c.group, Topic: c.topic, StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond,
	})
	defer func() { _ = r.Close() }()
	for {
		m, err := r.FetchMessage(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.print(line{What: "failed", Error: "read: " + err.Error()})
			return
		}
		c.print(line{What: "read", Partition: m.Partition, Offset: m.Offset, Value: string(m.Value)})
		_ = r.CommitMessages(ctx, m) // in a rebalance it is refused, and the message read again
	}
}

// partitions asks a broker, and keeps nothing of it.
func (c *client) partitions(ctx context.Context, broker string) ([]kafka.Partition, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := kafka.DialContext(ctx, "tcp", broker)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * dialLimit)); err != nil {
		return nil, err
	}
	return conn.ReadPartitions(c.topic)
}

// ask asks one broker for the metadata again and again, and prints for how long it named
// no leader of a partition. A broker that is not there is passed over.
func (c *client) ask(ctx context.Context, broker string) {
	since := map[int]time.Time{}
	for ctx.Err() == nil {
		found, err := c.partitions(ctx, broker)
		var said kafka.Error
		switch {
		case errors.As(err, &said): // of one partition, without the others
			since[-1] = first(since[-1])
		case err == nil:
			c.over(broker, -1, since)
			for _, p := range found {
				if p.Leader.Host == "" || p.Error != nil {
					since[p.ID] = first(since[p.ID])
				} else {
					c.over(broker, p.ID, since)
				}
			}
		}
		select {
		case <-time.After(askEvery):
		case <-ctx.Done():
		}
	}
	for p := range since {
		c.over(broker, p, since)
	}
}

func first(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}

func (c *client) over(broker string, p int, since map[int]time.Time) {
	if t, was := since[p]; was && !t.IsZero() {
		c.print(line{What: "leaderless", Broker: broker, Partition: p, Ms: time.Since(t).Milliseconds()})
	}
	delete(since, p)
}
