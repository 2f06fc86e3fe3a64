package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// apacheKafka is Apache Kafka as one KRaft node of its own, from a directory of
// jars (scripts/kafka/pom.xml names them). flush has it fsync every append before
// it acknowledges, the promise that a Mink node makes; without, it is as shipped
// and acknowledges from the page cache.
func apacheKafka(name, libs string, flush bool) *broker {
	return &broker{name: name, prepare: func(ctx context.Context, dir string) ([]string, string, error) {
		addr, err := freePort(ctx)
		if err != nil {
			return nil, "", err
		}
		controller, err := freePort(ctx)
		if err != nil {
			return nil, "", err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, "", err
		}
		config := filepath.Join(dir, "server.properties")
		text := fmt.Sprintf(`process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=%[3]s
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
message.max.bytes=16777216
`, addr, controller, filepath.Join(dir, "log"))
		if flush {
			text += "log.flush.interval.messages=1\n"
		}
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return nil, "", err
		}
		// The heap is that of Kafka's own start script.
		java := []string{"java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", filepath.Join(libs, "*")}
		format := exec.CommandContext(ctx, java[0], append(java[1:], "kafka.tools.StorageTool", "format", "-t", "bWluay1iZW5jaC0xMjM0NQ", "-c", config)...) //nolint:gosec // the jars are the caller's choice
		if out, err := format.CombinedOutput(); err != nil {
			return nil, "", fmt.Errorf("format the storage of Apache Kafka: %w\n%s", err, out)
		}
		return append(java, "kafka.Kafka", config), addr, nil
	}}
}
