package flight

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
)

// tableNamed finds "database.table". Names may hold dots themselves: the first
// dot that makes two known names counts.
func tableNamed(view *cluster.State, name string) (*cluster.Table, error) {
	database := ""
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		if t, ok := view.TableByName(name[:i], name[i+1:]); ok {
			return t, nil
		}
		if _, ok := view.Database(name[:i]); ok && database == "" {
			database = name[:i]
		}
	}
	switch first, _, dotted := strings.Cut(name, "."); {
	case !dotted:
		return nil, fmt.Errorf("%w: table %.200q: want database.table", mink.ErrInvalid, name)
	case database == "":
		return nil, fmt.Errorf("table %.400s: database %.200q %w", name, first, mink.ErrNotExist)
	}
	return nil, fmt.Errorf("table %.400s %w%s", name, mink.ErrNotExist, nearTable(view, database, name[len(database)+1:]))
}

// nearTable suggests a table of the database for one that does not exist.
func nearTable(view *cluster.State, database, table string) string {
	var known []string
	for t := range view.Tables(database) {
		known = append(known, t.Descriptor.Table)
		if len(known) == 1000 {
			break
		}
	}
	if k, ok := nearest.Close(table, known); ok {
		return fmt.Sprintf("; did you mean %q?", database+"."+k)
	}
	return ""
}

// tableAt finds the table of a path: [database, table], or one element with a dot.
func tableAt(view *cluster.State, path []string) (*cluster.Table, error) {
	switch len(path) {
	case 1:
		return tableNamed(view, path[0])
	case 2:
		if t, ok := view.TableByName(path[0], path[1]); ok {
			return t, nil
		}
		return nil, fmt.Errorf("table %.200s.%.200s %w%s", path[0], path[1], mink.ErrNotExist, nearTable(view, path[0], path[1]))
	default:
		return nil, fmt.Errorf("%w: a path of %d elements: want [database, table]", mink.ErrInvalid, len(path))
	}
}

// command reads a descriptor: a path stands for {"table": ...} alone.
func command(view *cluster.State, d *flight.FlightDescriptor) (api.Command, *cluster.Table, error) {
	var c api.Command
	switch d.GetType() {
	case flight.DescriptorPATH:
		t, err := tableAt(view, d.GetPath())
		return c, t, err
	case flight.DescriptorCMD:
		if err := wire.Decode("command descriptor", d.GetCmd(), &c); err != nil {
			return c, nil, err
		}
	default:
		return c, nil, fmt.Errorf("%w: a descriptor is a path [database, table] or a command in JSON", mink.ErrInvalid)
	}
	if c.Append != nil || c.Put != nil {
		rest := c
		rest.Append, rest.Put = nil, nil
		if c.Append != nil && c.Put != nil || !reflect.ValueOf(rest).IsZero() {
			return c, nil, fmt.Errorf("%w: command descriptor: append and put stand alone", mink.ErrInvalid)
		}
		return c, nil, nil
	}
	if c.Table == "" {
		return c, nil, fmt.Errorf(`%w: command descriptor: field "table" is missing, want {"table":"database.table"}`, mink.ErrInvalid)
	}
	t, err := tableNamed(view, c.Table)
	return c, t, err
}

// hasKey reports that a table has a primary key: a store beside its log.
func hasKey(t *cluster.Table) bool { return len(t.Descriptor.PrimaryKey) > 0 }

// current is a table's newest schema version.
func current(t *cluster.Table) *schema.Schema { return t.Schemas[len(t.Schemas)-1] }

// wantKey refuses log tables.
func wantKey(t *cluster.Table) error {
	if hasKey(t) {
		return nil
	}
	return fmt.Errorf("%w: table %s is a log table: it has no primary key", mink.ErrInvalid, t.Descriptor.Name())
}

// projection answers the columns by name, in the order asked for; all of them
// when none is named.
func projection(s *schema.Schema, columns []string) (*schema.Schema, error) {
	if len(columns) == 0 {
		return s, nil
	}
	if len(columns) > len(s.Columns) {
		return nil, fmt.Errorf("%w: %d columns of a table that has %d", mink.ErrInvalid, len(columns), len(s.Columns))
	}
	out := &schema.Schema{ID: s.ID}
	for _, name := range columns {
		c, ok := s.Column(name)
		if !ok {
			known := make([]string, len(s.Columns))
			for i, c := range s.Columns {
				known[i] = c.Name
			}
			return nil, fmt.Errorf("%w: the table has no column %.200q%s", mink.ErrInvalid, name, wire.Suggest(name, known))
		}
		if out.Index(name) >= 0 {
			return nil, fmt.Errorf("%w: column %q occurs twice", mink.ErrInvalid, name)
		}
		out.Columns = append(out.Columns, c)
	}
	return out, nil
}

// partitionsOf lists a table's partitions, or the one with the values.
func partitionsOf(view *cluster.State, t *cluster.Table, values []string) ([]*cluster.Partition, error) {
	if len(values) > 0 {
		p, err := partitionNamed(view, t, values)
		if err != nil {
			return nil, err
		}
		return []*cluster.Partition{p}, nil
	}
	var out []*cluster.Partition
	for p := range view.Partitions(t.ID) {
		out = append(out, p)
	}
	return out, nil
}

func partitionNamed(view *cluster.State, t *cluster.Table, values []string) (*cluster.Partition, error) {
	keys := t.Descriptor.PartitionKeys
	if len(keys) == 0 && len(values) == 0 {
		for p := range view.Partitions(t.ID) {
			return p, nil
		}
	}
	if len(values) != len(keys) {
		return nil, fmt.Errorf("%w: table %s has %d partition keys %v, got %d values", mink.ErrInvalid, t.Descriptor.Name(), len(keys), keys, len(values))
	}
	p, ok := view.PartitionByValues(t.ID, values)
	if !ok {
		return nil, fmt.Errorf("partition %.400q of table %s %w", values, t.Descriptor.Name(), mink.ErrNotExist)
	}
	return p, nil
}
