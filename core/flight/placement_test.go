package flight_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// vector is a key and its bucket, as every client must compute it.
type vector struct {
	Types, Values []string
	Buckets       []int32
}

func bucketVectors(t *testing.T) (count int, vectors []vector) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "schema", "testdata", "bucket_vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		BucketCounts []int `json:"bucket_counts"`
		Vectors      []vector
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	const which = 2
	for i := range all.Vectors {
		all.Vectors[i].Buckets = all.Vectors[i].Buckets[which : which+1]
	}
	return all.BucketCounts[which], all.Vectors
}

// object is the key in JSON, its columns k0, k1 ...
func (v *vector) object(t *testing.T) string {
	t.Helper()
	row := map[string]any{}
	for i, text := range v.Values {
		name := fmt.Sprintf("k%d", i)
		switch typ := v.Types[i]; {
		case typ == "BOOLEAN":
			row[name] = text == "true"
		case strings.HasPrefix(typ, "B") && typ != "BIGINT":
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			row[name] = base64.StdEncoding.EncodeToString(b)
		default:
			row[name] = text
		}
	}
	return string(api.JSON(row))
}

// Keys of every type find the bucket that the vectors for other languages say, in puts
// by path, lookups and native puts; no other bucket takes them.
func TestKeysFindTheirBuckets(t *testing.T) {
	w := newWorld(t)
	count, vectors := bucketVectors(t)
	for len(vectors) > 0 {
		n := 1
		for n < len(vectors) && slices.Equal(vectors[n].Types, vectors[0].Types) {
			n++
		}
		t.Run(strings.Join(vectors[0].Types, ","), func(t *testing.T) { w.place(t, count, vectors[:n]) })
		vectors = vectors[n:]
	}
}

func (w *world) place(t *testing.T, count int, vectors []vector) {
	var columns, keys []string
	for i, typ := range vectors[0].Types {
		keys = append(keys, fmt.Sprintf("k%d", i))
		columns = append(columns, fmt.Sprintf(`{"name":"k%d","type":"%s"}`, i, typ))
	}
	w.table(strings.Join(columns, ",")+`,{"name":"v","type":"INT"}`, fmt.Sprintf(`"primary_key":%s,"bucket_count":%d`, api.JSON(keys), count))
	defer w.dropTable()
	for i, v := range vectors {
		object := v.object(t)
		rows := w.jsonRecord(append(slices.Clone(keys), "v"), object[:len(object)-1]+fmt.Sprintf(`,"v":%d}`, i))
		defer rows.Release()
		rows.Retain()
		p := w.put(path("db", "t"), rows.Schema())
		p.send(rows, nil)
		if r := mustResult[api.PutResult](p); len(r.Buckets) != 1 || r.Buckets[0].Bucket.Index != v.Buckets[0] {
			t.Errorf("%v: put into %+v, want bucket %d", v.Values, r.Buckets, v.Buckets[0])
		}
		p.finish()
		var l api.LookupRows
		if err := w.action(api.ActionLookup, `{"table":"db.t","keys":[`+object+`],"columns":["v"]}`, &l); err != nil || len(l.Missing) > 0 || string(l.Rows[0]) != fmt.Sprintf(`{"v":%d}`, i) {
			t.Errorf("%v: lookup %s, %v", v.Values, l.Rows, err)
		}
		for _, index := range []int32{v.Buckets[0], (v.Buckets[0] + 1) % int32(count)} {
			b := w.bucket(index)
			p := w.put(cmd(api.Command{Put: &api.Put{Bucket: b, SchemaID: 1, WriterID: mink.WriterID(1 + i), Columns: keys}}), w.recordOf(keys).Schema())
			p.send(array.NewRecordBatch(w.recordOf(keys).Schema(), rows.Columns()[:len(keys)], 1), api.PutMetadata{Delete: true})
			_, err := result[api.AppendResult](p)
			if index == v.Buckets[0] && err != nil {
				t.Errorf("%v: native delete in its bucket: %v", v.Values, err)
			}
			if index != v.Buckets[0] {
				wantStatus(t, err, api.ReasonInvalid, fmt.Sprintf("belongs to bucket %d", v.Buckets[0]))
			}
		}
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
