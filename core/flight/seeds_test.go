package flight

import (
	"testing"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
)

// seedView has the table db.t with the columns id and name, and db.items with the
// primary key (day, shop, id).
func seedView(t testing.TB) *cluster.State {
	t.Helper()
	d, err := (&schema.Descriptor{Database: "db", Table: "t", Schema: schema.Schema{Columns: []schema.Column{
		{Name: "id", Type: schema.MustParseType("BIGINT NOT NULL")}, {Name: "name", Type: schema.MustParseType("STRING")},
	}}}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	items, err := (&schema.Descriptor{Database: "db", Table: "items", PrimaryKey: []string{"day", "shop", "id"}, PartitionKeys: []string{"day"}, BucketKeys: []string{"shop"}, Schema: schema.Schema{Columns: []schema.Column{
		{Name: "day", Type: schema.MustParseType("DATE")}, {Name: "shop", Type: schema.MustParseType("STRING")}, {Name: "id", Type: schema.MustParseType("BIGINT")}, {Name: "n", Type: schema.MustParseType("INT")},
	}}}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	s := cluster.NewState()
	epoch := int64(0)
	for _, c := range []*clusterpb.Command{
		{Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{Node: 1, Nonce: 1, FeatureLevel: cluster.FeatureLevel}}},
		{Kind: &clusterpb.Command_CreateDatabase{CreateDatabase: &clusterpb.CreateDatabase{Name: "db"}}},
		{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: []byte("0123456789abcdef")}}},
		{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{Descriptor_: items.Encode(), Uuid: []byte("1123456789abcdef")}}},
	} {
		next, results, err := s.Apply(s.Index()+1, 1_700_000_000_000, &clusterpb.Batch{Epoch: epoch, FeatureLevel: cluster.FeatureLevel, Commands: []*clusterpb.Command{c}})
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.ResultError(results[0]); err != nil {
			t.Fatal(err)
		}
		if s = next; epoch == 0 {
			epoch = results[0].Id
		}
	}
	return s
}
