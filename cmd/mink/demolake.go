package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

//go:embed demodata/read_lake.py
var readLakePy string

const (
	demoLake      = "weather" // the topic; the table is of Kafka's database
	demoLakeTable = "kafka." + demoLake
	demoFirst     = 1000 // rows that are in the lake before the others come
	foreignMax    = time.Minute
)

// summary is the demo's question: of one kind of weather, how many days and how warm.
type summary struct {
	weather string
	days    int64
	warmest float64
}

// UnmarshalJSON takes [weather, days, warmest].
func (s *summary) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&s.weather, &s.days, &s.warmest})
}

// throughTheLake takes JSON from Kafka to an Iceberg table, and reads it there: with Mink, and
// with another engine when there is one.
func (d *demo) throughTheLake(ctx context.Context) error {
	c, err := d.client()
	if err != nil {
		return err
	}
	defer c.Close()
	desc, err := d.app.descriptor(demoLakeTable, tableFlags{buckets: 1, options: []string{"kafka.value.format=json", "lake=true"}, columns: []string{
		"date DATE NOT NULL", "precipitation DOUBLE", "temp_max DOUBLE", "temp_min DOUBLE", "wind DOUBLE", "weather STRING",
	}})
	if err != nil {
		return err
	}
	if _, err := c.CreateTable(ctx, desc, true); err != nil {
		return err
	}
	if l, err := c.LakeSnapshot(ctx, demoLakeTable); err != nil {
		return err
	} else if l.CatalogError != "" {
		d.say("\n9. There is no lake here: %s", l.CatalogError)
		return nil
	}
	objects, err := weatherObjects()
	if err != nil {
		return err
	}
	if err := d.produceObjects(ctx, objects[:demoFirst]); err != nil {
		return err
	}
	if err := d.tier(ctx, c); err != nil {
		return err
	}
	if err := d.produceObjects(ctx, objects[demoFirst:]); err != nil {
		return err
	}
	d.say("\n9. The same rows as JSON through Kafka into the typed topic %s, a table with lake=true:", demoLake)
	l, err := c.LakeSnapshot(ctx, demoLakeTable)
	if err != nil {
		return err
	}
	both, err := d.countRows(ctx, c, false)
	if err != nil {
		return err
	}
	lake, err := d.countRows(ctx, c, true)
	if err != nil {
		return err
	}
	if lake != demoFirst || both != int64(len(objects)) || l.LagOffsets != both-lake {
		return fmt.Errorf("%s has %d rows in the lake and %d in all, behind by %d; %d and %d were acknowledged", demoLakeTable, lake, both, l.LagOffsets, demoFirst, len(objects))
	}
	d.say("   %d rows are in the Iceberg table (lake snapshot %s), %d came since", lake, l.Snapshot, l.LagOffsets)
	d.say("   a union read, of the lake and the log behind it, has all %d", both)
	if err := d.tier(ctx, c); err != nil {
		return err
	}
	if l, err = c.LakeSnapshot(ctx, demoLakeTable); err != nil {
		return err
	}
	ours, err := d.ask(ctx, c)
	if err != nil {
		return err
	}
	return d.sideBySide(ctx, ours, l.MetadataLocation)
}

func (d *demo) tier(ctx context.Context, c *client.Client) error {
	r, err := c.TierTable(ctx, api.TierTable{Table: demoLakeTable, Wait: true})
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	return err
}

// weatherObjects are the rows of the CSV file as JSON objects, numbers as numbers.
func weatherObjects() ([]string, error) {
	lines, err := csv.NewReader(bytes.NewReader(weatherCSV)).ReadAll()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range lines[1:] {
		o := map[string]any{}
		for i, name := range lines[0] {
			o[name] = l[i]
			if _, err := strconv.ParseFloat(l[i], 64); err == nil {
				o[name] = json.Number(l[i])
			}
		}
		out = append(out, string(api.JSON(o)))
	}
	return out, nil
}

func (d *demo) produceObjects(ctx context.Context, objects []string) error {
	k, err := kgo.NewClient(kgo.SeedBrokers(d.kafka), kgo.DefaultProduceTopic(demoLake), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	if err != nil {
		return err
	}
	defer k.Close()
	var records []*kgo.Record
	for _, o := range objects {
		records = append(records, &kgo.Record{Value: []byte(o)})
	}
	return k.ProduceSync(ctx, records...).FirstErr()
}

func (d *demo) countRows(ctx context.Context, c *client.Client, lakeOnly bool) (n int64, err error) {
	for b, err := range c.ScanUnion(ctx, client.UnionRequest{Table: demoLakeTable, Bucket: -1, Columns: []string{"date"}, LakeOnly: lakeOnly}) {
		if err != nil {
			return 0, err
		}
		n += b.Record.NumRows()
	}
	return n, nil
}

// ask answers the demo's question by a union read.
func (d *demo) ask(ctx context.Context, c *client.Client) ([]summary, error) {
	of := map[string]*summary{}
	for b, err := range c.ScanUnion(ctx, client.UnionRequest{Table: demoLakeTable, Bucket: -1, Columns: []string{"weather", "temp_max"}}) {
		if err != nil {
			return nil, err
		}
		weather, warm := b.Record.Column(0).(*array.String), b.Record.Column(1).(*array.Float64)
		for i := range weather.Len() {
			s := of[weather.Value(i)]
			if s == nil {
				s = &summary{weather: weather.Value(i), warmest: math.Inf(-1)}
				of[s.weather] = s
			}
			s.days++
			s.warmest = max(s.warmest, warm.Value(i))
		}
	}
	var out []summary
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, *of[k])
	}
	return out, nil
}

// sideBySide prints Mink's answer and another engine's, which must be the same.
func (d *demo) sideBySide(ctx context.Context, ours []summary, metadata string) error {
	reader, theirs, err := d.foreign(ctx, metadata)
	if err != nil {
		return err
	}
	header := []string{"weather", "days", "warmest"}
	var rows [][]string
	for _, s := range ours {
		rows = append(rows, []string{s.weather, strconv.FormatInt(s.days, 10), fmt.Sprint(s.warmest)})
	}
	if reader == "" {
		d.say("\n10. Days and highest temperature of each weather, by a union read:")
		d.app.printTable(header, rows)
		d.say("   No other engine was found to ask the same. Any that reads Iceberg can; with Python:")
		d.say("   python3 -m venv v && v/bin/pip install duckdb duckdb-extension-avro duckdb-extension-iceberg")
		d.say("   %s demo --python v/bin/python", os.Args[0])
		return nil
	}
	for i := range rows {
		more := []string{"", "", ""}
		if i < len(theirs) {
			more = []string{theirs[i].weather, strconv.FormatInt(theirs[i].days, 10), fmt.Sprint(theirs[i].warmest)}
		}
		rows[i] = append(rows[i], more[1:]...)
	}
	d.say("\n10. Days and highest temperature of each weather: a union read of Mink's, and %s on the Iceberg table,", reader)
	d.say("    %s", metadata)
	d.app.printTable(append(header, reader+": days", "warmest"), rows)
	if !slices.Equal(ours, theirs) {
		return fmt.Errorf("%s has other rows in %s than Mink: %v and %v", reader, metadata, theirs, ours)
	}
	d.say("   the same")
	return nil
}

// foreign asks another engine; reader is "" when there is none, or it cannot reach the store.
func (d *demo) foreign(ctx context.Context, metadata string) (reader string, rows []summary, err error) {
	python, err := exec.LookPath(d.python)
	if err != nil && d.pythonGiven {
		return "", nil, fmt.Errorf("--python: %w", err)
	}
	if err != nil || d.objects != "" {
		return "", nil, nil //nolint:nilerr // nothing there is an answer
	}
	ctx, cancel := context.WithTimeout(ctx, foreignMax)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", readLakePy, metadata)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == foreignNone && d.pythonGiven:
		return "", nil, fmt.Errorf("--python %s: it has neither duckdb with the extensions avro and iceberg nor pyiceberg: pip install duckdb duckdb-extension-avro duckdb-extension-iceberg", d.python)
	case errors.As(err, &exit) && exit.ExitCode() == foreignNone:
		return "", nil, nil
	case err != nil:
		return "", nil, fmt.Errorf("%s cannot read the Iceberg table at %s: %w\n%s", python, metadata, err, said.Bytes())
	}
	var answer struct {
		Reader string    `json:"reader"`
		Rows   []summary `json:"rows"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return "", nil, fmt.Errorf("%s answered %.200q: %w", python, out, err)
	}
	return answer.Reader, answer.Rows, nil
}

// foreignNone is the exit code of read_lake.py without an engine.
const foreignNone = 3
