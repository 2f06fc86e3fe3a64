package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

const version = "0.1.0"

// jsonl is the sink. A table is a directory:
//
//	DIR/<database>/<table>-<table id>/
//	    schemas/<schema id>.arrow         every schema that the table had
//	    staged/<fence>-<round id>/        a round that is open or prepared
//	    rounds/<number>/                  a committed round
//	        rows.jsonl                    one row a line
//	        schema.arrow                  of these rows
//	        round.json                    sink.Committed with this round
//	DIR/.trash/                           on its way out
//
// To commit is to rename a staged directory to the next number. The number is the
// compare-and-swap: of two workers that both take it for the next one, the file
// system lets one through. All that the round changes is in that directory, so
// that there is no state between before and after.
type jsonl struct {
	dir   string
	trace func(step, path string) // for tests; nil: none
}

const (
	trashName  = ".trash"
	rowsName   = "rows.jsonl"
	roundName  = "round.json"
	schemaName = "schema.arrow"
)

func open(dir string) (*jsonl, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: the option dir is not set: name the directory that is to hold the tables", sink.ErrInvalid)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sink.ErrInvalid, err)
	}
	s := &jsonl{dir: dir}
	trash := filepath.Join(dir, trashName)
	if err := s.makeDirs(trash); err != nil {
		return nil, err
	}
	old, err := os.ReadDir(trash) // of processes that were killed
	for _, e := range old {
		err = errors.Join(err, os.RemoveAll(filepath.Join(trash, e.Name())))
	}
	return s, ioError(err)
}

func (s *jsonl) Describe() sink.Description {
	return sink.Description{
		Name: "jsonl", Version: version, Delivery: sink.ExactlyOnce, Changes: sink.ChangesKept,
		StagedSurvives: true, SchemaChanges: true, ReadBack: true,
	}
}

func (s *jsonl) Close() error { return nil }

func (s *jsonl) tableDir(spec sink.TableSpec) string {
	return filepath.Join(s.dir, spec.Database, fmt.Sprintf("%s-%d", spec.Name, spec.ID))
}

func (s *jsonl) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := req.Table.Validate(); err != nil { // names become paths
		return nil, err
	}
	for _, f := range req.Table.Schema.Arrow.Fields() {
		if strings.HasPrefix(f.Name, "__") {
			return nil, fmt.Errorf("%w: column %q: names that begin with __ are this sink's own", sink.ErrUnimplemented, f.Name)
		}
	}
	if len(req.Table.Options) > 0 && !req.Drop {
		return nil, fmt.Errorf("%w: table %s: sink-jsonl has no options of a table, and it has %q", sink.ErrInvalid, req.Table.FullName(), slices.Sorted(maps.Keys(req.Table.Options)))
	}
	t := &table{sink: s, spec: req.Table, dir: s.tableDir(req.Table)}
	for _, d := range []string{"schemas", "staged", "rounds"} {
		if err := s.makeDirs(filepath.Join(t.dir, d)); err != nil {
			return nil, err
		}
	}
	return t, t.follow(req.Table.Schema)
}

// Read gives the committed rows back, round by round.
func (s *jsonl) Read(ctx context.Context, req sink.ReadRequest, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	if err := req.Table.Validate(); err != nil {
		return err
	}
	dir := s.tableDir(req.Table)
	for n := 1; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := readRound(filepath.Join(dir, "rounds", number(n)), len(req.Table.PrimaryKey) > 0, yield)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !more {
			return err
		}
	}
}

// number is a name that sorts as numbers do.
func number(n int) string { return fmt.Sprintf("%010d", n) }

// lastRound is the last committed round of a table and its number, 0 for none.
func lastRound(dir string) (sink.Committed, int, error) {
	var c sink.Committed
	names, err := os.ReadDir(filepath.Join(dir, "rounds"))
	if err != nil || len(names) == 0 {
		return c, 0, ioError(err)
	}
	name := names[len(names)-1].Name() // sorted
	n, err := strconv.Atoi(name)
	if err != nil || number(n) != name {
		return c, 0, fmt.Errorf("%w: %s: %q is no round", sink.ErrCorrupt, dir, name)
	}
	data, err := os.ReadFile(filepath.Join(dir, "rounds", name, roundName))
	if err != nil {
		return c, 0, fmt.Errorf("%w: %s: round %d: %w", sink.ErrCorrupt, dir, n, err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, 0, fmt.Errorf("%s: round %d: %w", dir, n, err)
	}
	return c, n, nil
}
