package kafka

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
)

// config is one config of a topic or broker.
type config struct {
	name, value string
	// fallback is the value that is in force when nobody sets one.
	fallback string
	// synonym is the broker config that the fallback has in Kafka.
	synonym string
	source  kmsg.ConfigSource
	kind    kmsg.ConfigType
	doc     string
	fixed   bool // read-only
}

// brokerSynonyms maps topic configs to the broker configs that Kafka takes their
// defaults from. Here these show the default, and nobody can set them.
var brokerSynonyms = map[string]string{
	"cleanup.policy":                      "log.cleanup.policy",
	"compression.type":                    "compression.type",
	"delete.retention.ms":                 "log.cleaner.delete.retention.ms",
	"file.delete.delay.ms":                "log.segment.delete.delay.ms",
	"flush.messages":                      "log.flush.interval.messages",
	"flush.ms":                            "log.flush.interval.ms",
	"index.interval.bytes":                "log.index.interval.bytes",
	"local.retention.bytes":               "log.local.retention.bytes",
	"local.retention.ms":                  "log.local.retention.ms",
	"max.compaction.lag.ms":               "log.cleaner.max.compaction.lag.ms",
	"max.message.bytes":                   "message.max.bytes",
	"message.downconversion.enable":       "log.message.downconversion.enable",
	"message.format.version":              "log.message.format.version",
	"message.timestamp.after.max.ms":      "log.message.timestamp.after.max.ms",
	"message.timestamp.before.max.ms":     "log.message.timestamp.before.max.ms",
	"message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
	"message.timestamp.type":              "log.message.timestamp.type",
	"min.cleanable.dirty.ratio":           "log.cleaner.min.cleanable.ratio",
	"min.compaction.lag.ms":               "log.cleaner.min.compaction.lag.ms",
	"min.insync.replicas":                 "min.insync.replicas",
	"preallocate":                         "log.preallocate",
	"retention.bytes":                     "log.retention.bytes",
	"retention.ms":                        "log.retention.ms",
	"segment.bytes":                       "log.segment.bytes",
	"segment.index.bytes":                 "log.index.size.max.bytes",
	"segment.jitter.ms":                   "log.roll.jitter.ms",
	"segment.ms":                          "log.roll.ms",
	"unclean.leader.election.enable":      "unclean.leader.election.enable",
}

// intConfigs are Kafka's INT configs; the other whole numbers are LONG.
var intConfigs = []string{"index.interval.bytes", "max.message.bytes", "min.insync.replicas", "segment.bytes", "segment.index.bytes"}

func configType(name string, t schema.ValueType) kmsg.ConfigType {
	switch {
	case name == "cleanup.policy", t == schema.TypeList:
		return kmsg.ConfigTypeList
	case t == schema.TypeBool:
		return kmsg.ConfigTypeBoolean
	case t == schema.TypeFloat:
		return kmsg.ConfigTypeDouble
	case t == schema.TypeInt && slices.Contains(intConfigs, name):
		return kmsg.ConfigTypeInt
	case t == schema.TypeInt:
		return kmsg.ConfigTypeLong
	default:
		return kmsg.ConfigTypeString
	}
}

// topicConfigs lists the configs of a topic's table, sorted by name.
func topicConfigs(d *schema.Descriptor) ([]config, error) {
	list, err := d.KafkaConfigs()
	if err != nil {
		return nil, err
	}
	out := make([]config, len(list))
	for i, c := range list {
		out[i] = config{name: c.Name, value: c.Value, fallback: c.Default, synonym: brokerSynonyms[c.Name],
			source: kmsg.ConfigSourceDefaultConfig, kind: configType(c.Name, c.Type), doc: c.Doc}
		if out[i].synonym == "" {
			out[i].synonym = c.Name
		}
		if c.Set {
			out[i].source = kmsg.ConfigSourceDynamicTopicConfig
		}
	}
	return out, nil
}

// brokerConfigs lists what tools look for in a broker's configs, sorted by name:
// this node's settings that have a Kafka name, and the defaults of topics.
func (b *broker) brokerConfigs() ([]config, error) {
	d, err := schema.KafkaTopic(b.cfg.Database, "defaults", 1, nil)
	if err != nil {
		return nil, err
	}
	topic, err := topicConfigs(d)
	if err != nil {
		return nil, err
	}
	var out []config
	for _, c := range topic {
		if brokerSynonyms[c.name] != "" {
			c.name = c.synonym
			out = append(out, c)
		}
	}
	out = append(out, b.ownConfigs()...)
	for i := range out {
		out[i].synonym, out[i].fixed = out[i].name, true
	}
	slices.SortFunc(out, func(x, y config) int { return strings.Compare(x.name, y.name) })
	return out, nil
}

// ownConfigs are the settings of this node and its listener.
func (b *broker) ownConfigs() []config {
	def := Default()
	static := func(name, value, fallback string, kind kmsg.ConfigType, doc string) config {
		c := config{name: name, value: value, fallback: fallback, kind: kind, doc: doc, source: kmsg.ConfigSourceStaticBrokerConfig}
		if value == fallback {
			c.source = kmsg.ConfigSourceDefaultConfig
		}
		return c
	}
	number := func(name string, value, fallback int64, kind kmsg.ConfigType, doc string) config {
		return static(name, strconv.FormatInt(value, 10), strconv.FormatInt(fallback, 10), kind, doc)
	}
	const word, whole, long = kmsg.ConfigTypeString, kmsg.ConfigTypeInt, kmsg.ConfigTypeLong
	self := b.backend.Self()
	list := []config{
		number("broker.id", int64(self), -1, whole, "node_id of this node."),
		number("node.id", int64(self), -1, whole, "node_id of this node."),
		static("listeners", "PLAINTEXT://"+b.cfg.Listen, "PLAINTEXT://"+def.Listen, word, "kafka_listen of this node."),
		static("auto.create.topics.enable", strconv.FormatBool(b.cfg.AutoCreateTopics), "true", kmsg.ConfigTypeBoolean, "auto_create_topics of this node."),
		number("num.partitions", int64(b.cfg.DefaultPartitions), int64(def.DefaultPartitions), whole, "default_partitions of this node."),
		number("default.replication.factor", 1, 1, whole, "The object store keeps the copies: any factor is accepted, 1 is reported."),
		static("delete.topic.enable", "true", "true", kmsg.ConfigTypeBoolean, "Topics can be deleted."),
		number("log.retention.minutes", 7*24*60, 7*24*60, whole, "log.retention.ms in minutes: the default of new topics."),
		number("log.retention.hours", 7*24, 7*24, whole, "log.retention.ms in hours: the default of new topics."),
		static("log.dirs", b.cfg.LogDir, def.LogDir, word, "Where records are: the object store."),
		number("socket.request.max.bytes", int64(b.cfg.FrameBytesMax), int64(def.FrameBytesMax), whole, "The largest Produce request."),
		number("fetch.max.bytes", int64(b.cfg.FetchBytesMax), int64(def.FetchBytesMax), whole, "The most record bytes of one Fetch response."),
		number("max.connections", int64(b.cfg.ConnectionsMax), int64(def.ConnectionsMax), whole, "Further connections are closed at once."),
		number("connections.max.idle.ms", b.cfg.IdleTimeout.Milliseconds(), def.IdleTimeout.Milliseconds(), long, "A connection without a request in flight is closed after so long."),
		number("producer.id.expiration.ms", tablet.WriterExpiry.Milliseconds(), tablet.WriterExpiry.Milliseconds(), whole, "How long the sequences of an idle producer are remembered."),
		number("max.incremental.fetch.session.cache.slots", 0, 0, whole, "There are no fetch sessions."),
	}
	if n, ok := b.backend.View().Node(self); ok {
		if e, ok := endpointOf(n); ok {
			list = append(list, static("advertised.listeners", "PLAINTEXT://"+net.JoinHostPort(e.host, strconv.Itoa(int(e.port))), "", word, "kafka_advertise of this node."))
			if e.rack != nil {
				list = append(list, static("broker.rack", *e.rack, "", word, "Rack of this node."))
			}
		}
	}
	return list
}

// answer is the config as DescribeConfigs puts it.
func (c *config) answer(r *kmsg.DescribeConfigsRequest) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value, out.Source, out.ConfigType, out.ReadOnly = c.name, &c.value, c.source, c.kind, c.fixed
	out.IsDefault = c.source == kmsg.ConfigSourceDefaultConfig
	out.ConfigSynonyms = []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{}
	if r.IncludeDocumentation {
		out.Documentation = &c.doc
	}
	if !r.IncludeSynonyms {
		return out
	}
	// Strongest first, as they would win; the fallback is always there.
	if !out.IsDefault {
		s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		s.Name, s.Value, s.Source = c.name, &c.value, c.source
		out.ConfigSynonyms = append(out.ConfigSynonyms, s)
	}
	s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
	s.Name, s.Value, s.Source = c.synonym, &c.fallback, kmsg.ConfigSourceDefaultConfig
	out.ConfigSynonyms = append(out.ConfigSynonyms, s)
	return out
}

func (b *broker) describeConfigs(ctx context.Context, r *kmsg.DescribeConfigsRequest) (*kmsg.DescribeConfigsResponse, error) {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	seen := make(map[resource]struct{}, len(r.Resources))
	for i := range r.Resources {
		in := &r.Resources[i]
		if !firstTime(seen, resource{in.ResourceType, in.ResourceName}) {
			continue
		}
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		list, err := b.configsOf(ctx, in.ResourceType, in.ResourceName)
		if err != nil {
			out.ErrorCode, out.ErrorMessage = b.fail("DescribeConfigs", err.code), &err.why
		}
		for j := range list {
			if len(in.ConfigNames) == 0 || slices.Contains(in.ConfigNames, list[j].name) {
				out.Configs = append(out.Configs, list[j].answer(r))
			}
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

func (b *broker) configsOf(ctx context.Context, kind kmsg.ConfigResourceType, name string) ([]config, *topicError) {
	var list []config
	var err error
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		t, terr := b.configuredTopic(ctx, name)
		if terr != nil {
			return nil, terr
		}
		list, err = topicConfigs(t.table.Descriptor)
	case kmsg.ConfigResourceTypeBroker:
		if terr := b.checkBrokerName(name); terr != nil || name == "" {
			return nil, terr // the cluster's own defaults: nobody sets any
		}
		list, err = b.brokerConfigs()
	default:
		return nil, unknownResource(kind)
	}
	if err != nil {
		return nil, topicErrorf(codeUnknownServerError, "%v", err)
	}
	return list, nil
}

func unknownResource(kind kmsg.ConfigResourceType) *topicError {
	return topicErrorf(codeInvalidRequest, "configs of resource type %d: there are those of topics (%d) and brokers (%d)", kind, kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker)
}

func (b *broker) configuredTopic(ctx context.Context, name string) (*topic, *topicError) {
	topics := b.lookup(ctx)
	if t := topics.byName(name, 0); t != nil {
		return t, nil
	}
	if err := checkTopicName(name); err != nil {
		return nil, err
	}
	return nil, topicErrorf(codeUnknownTopicOrPartition, "topic %q does not exist", name)
}

// checkBrokerName: a broker's configs are its own to tell; "" are the defaults
// of all.
func (b *broker) checkBrokerName(name string) *topicError {
	if name == "" {
		return nil
	}
	self := b.backend.Self()
	if id, ok := nodeNamed(b.backend.View(), name); !ok || id != self {
		return topicErrorf(codeInvalidRequest, "broker %q was asked for at broker %d: ask it itself", name, self)
	}
	return nil
}

// alteration makes the changes of a topic's table.
type alteration func(d *schema.Descriptor) ([]schema.Change, *topicError)

// alterOne changes the configs of one resource; nothing at all with validateOnly.
func (b *broker) alterOne(ctx context.Context, kind kmsg.ConfigResourceType, name string, times int, validateOnly bool, plan alteration) *topicError {
	switch {
	case times > 1:
		return topicErrorf(codeInvalidRequest, "resource %q is in the request %d times", name, times)
	case kind == kmsg.ConfigResourceTypeBroker:
		if err := b.checkBrokerName(name); err != nil {
			return err
		}
		return topicErrorf(codeInvalidRequest, "broker configs are read-only here: set them in the node's configuration (file, MINK_ variables or flags) and restart it")
	case kind != kmsg.ConfigResourceTypeTopic:
		return unknownResource(kind)
	}
	t, terr := b.configuredTopic(ctx, name)
	if terr != nil {
		return terr
	}
	d := t.table.Descriptor
	changes, terr := plan(d)
	if terr != nil {
		return terr
	}
	if _, err := d.Apply(changes); err != nil {
		return topicErrorf(codeInvalidConfig, "%v", err)
	}
	if validateOnly || len(changes) == 0 {
		return nil
	}
	if _, err := b.backend.AlterTable(ctx, t.table.ID, changes); err != nil {
		c := catalogCode(err)
		if c == codeInvalidRequest {
			c = codeInvalidConfig
		}
		return topicErrorf(c, "alter configs of topic %s: %v", name, err)
	}
	return nil
}

// resource is what a request may name once.
type resource struct {
	kind kmsg.ConfigResourceType
	name string
}

// alterConfigs replaces: what the request does not name goes back to its default.
func (b *broker) alterConfigs(ctx context.Context, r *kmsg.AlterConfigsRequest) (*kmsg.AlterConfigsResponse, error) {
	tctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	times := map[resource]int{}
	for i := range r.Resources {
		times[resource{r.Resources[i].ResourceType, r.Resources[i].ResourceName}]++
	}
	resp := kmsg.NewPtrAlterConfigsResponse()
	for i := range r.Resources {
		in := &r.Resources[i]
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		err := b.alterOne(tctx, in.ResourceType, in.ResourceName, times[resource{in.ResourceType, in.ResourceName}], r.ValidateOnly, func(d *schema.Descriptor) ([]schema.Change, *topicError) {
			return replaceConfigs(d, in.Configs)
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.ErrorCode, out.ErrorMessage = b.fail("AlterConfigs", err.code), &err.why
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

// replaceConfigs resets every config but the one that makes a typed table a topic, set or not, so that one that somebody else
// sets meanwhile goes too, and sets the given ones.
func replaceConfigs(d *schema.Descriptor, configs []kmsg.AlterConfigsRequestResourceConfig) ([]schema.Change, *topicError) {
	list, err := d.KafkaConfigs()
	if err != nil {
		return nil, topicErrorf(codeUnknownServerError, "%v", err)
	}
	reset := schema.Change{Op: schema.ResetOptions}
	for _, c := range list {
		// A tool that only knows Kafka's configs does not mean to hide the topic.
		if name := schema.KafkaOption(c.Name); name != schema.OptionValueFormat {
			reset.Names = append(reset.Names, name)
		}
	}
	set := schema.Change{Op: schema.SetOptions, Options: map[string]string{}}
	for _, c := range configs {
		if c.Value == nil {
			return nil, topicErrorf(codeInvalidRequest, "config %q has no value", c.Name)
		}
		name := schema.KafkaOption(c.Name)
		if _, twice := set.Options[name]; twice {
			return nil, topicErrorf(codeInvalidRequest, "config %q is given twice", c.Name)
		}
		set.Options[name] = *c.Value
	}
	changes := []schema.Change{reset}
	if len(set.Options) > 0 {
		changes = append(changes, set)
	}
	return changes, nil
}

func (b *broker) incrementalAlterConfigs(ctx context.Context, r *kmsg.IncrementalAlterConfigsRequest) (*kmsg.IncrementalAlterConfigsResponse, error) {
	tctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	times := map[resource]int{}
	for i := range r.Resources {
		times[resource{r.Resources[i].ResourceType, r.Resources[i].ResourceName}]++
	}
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	for i := range r.Resources {
		in := &r.Resources[i]
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		err := b.alterOne(tctx, in.ResourceType, in.ResourceName, times[resource{in.ResourceType, in.ResourceName}], r.ValidateOnly, func(d *schema.Descriptor) ([]schema.Change, *topicError) {
			return editConfigs(d, in.Configs)
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.ErrorCode, out.ErrorMessage = b.fail("IncrementalAlterConfigs", err.code), &err.why
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

// editConfigs makes the changes of KIP-339. Append and subtract start from the
// list that this node sees: of two such edits at once the later one wins.
func editConfigs(d *schema.Descriptor, configs []kmsg.IncrementalAlterConfigsRequestResourceConfig) ([]schema.Change, *topicError) {
	list, err := topicConfigs(d)
	if err != nil {
		return nil, topicErrorf(codeUnknownServerError, "%v", err)
	}
	set := schema.Change{Op: schema.SetOptions, Options: map[string]string{}}
	reset := schema.Change{Op: schema.ResetOptions}
	seen := map[string]bool{}
	for _, c := range configs {
		name := schema.KafkaOption(c.Name)
		if seen[name] {
			return nil, topicErrorf(codeInvalidRequest, "config %q is given twice", c.Name)
		}
		seen[name] = true
		if c.Op == kmsg.IncrementalAlterConfigOpDelete {
			reset.Names = append(reset.Names, name)
			continue
		}
		if c.Value == nil {
			return nil, topicErrorf(codeInvalidRequest, "config %q has no value", c.Name)
		}
		value := *c.Value
		if c.Op != kmsg.IncrementalAlterConfigOpSet {
			at := slices.IndexFunc(list, func(k config) bool { return k.name == c.Name })
			var err error
			if value, err = editList(list, at, c.Op, value); err != nil {
				return nil, topicErrorf(codeInvalidConfig, "config %q: %v", c.Name, err)
			}
		}
		set.Options[name] = value
	}
	var changes []schema.Change
	if len(reset.Names) > 0 {
		changes = append(changes, reset)
	}
	if len(set.Options) > 0 {
		changes = append(changes, set)
	}
	return changes, nil
}

// editList adds items to list[at] or takes them out.
func editList(list []config, at int, op kmsg.IncrementalAlterConfigOp, items string) (string, error) {
	switch {
	case at < 0:
		return "", fmt.Errorf("no topic config has this name")
	case op != kmsg.IncrementalAlterConfigOpAppend && op != kmsg.IncrementalAlterConfigOpSubtract:
		return "", fmt.Errorf("operation %d: there are set 0, delete 1, append 2, subtract 3", op)
	case list[at].kind != kmsg.ConfigTypeList:
		return "", fmt.Errorf("append and subtract are for lists, which it is not")
	}
	split := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ",")
	}
	now := split(list[at].value)
	for _, item := range split(items) {
		has := slices.Contains(now, item)
		switch {
		case op == kmsg.IncrementalAlterConfigOpSubtract:
			now = slices.DeleteFunc(now, func(s string) bool { return s == item })
		case !has:
			now = append(now, item)
		}
	}
	return strings.Join(now, ","), nil
}
