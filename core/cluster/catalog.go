package cluster

import (
	"slices"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// MaxPartitionValue is the longest value of a partition key, bytes.
const MaxPartitionValue = 512

func (t *txn) createDatabase(c *clusterpb.CreateDatabase) *clusterpb.Result {
	if err := schema.CheckName("database", c.GetName()); err != nil {
		return refuseErr(err)
	}
	if old, found := t.s.databases.get(c.GetName()); found {
		if c.GetIfNotExists() {
			return okID(old.ID)
		}
		return exists("database %q exists already", c.GetName())
	}
	id := t.s.nextDatabase
	t.s.nextDatabase++
	t.s.databases.set(c.GetName(), &Database{ID: id, Name: c.GetName(), CreatedMs: t.s.timeMs})
	return okID(id)
}

func (t *txn) dropDatabase(c *clusterpb.DropDatabase) *clusterpb.Result {
	name := c.GetName()
	old, found := t.s.databases.get(name)
	if !found {
		if c.GetIfExists() {
			return ok()
		}
		return notExist("database %q does not exist", name)
	}
	tables := slices.Collect(t.s.Tables(name))
	if len(tables) > 0 && !c.GetCascade() {
		return conflict("database %q has %d tables: drop them first, or drop with cascade", name, len(tables))
	}
	for _, table := range tables {
		t.removeTable(table)
	}
	t.settle()
	t.s.databases.del(name)
	return okID(old.ID)
}

// createTable makes the table, its streams and their leaders. ids: the one
// partition of a table without partition keys.
func (t *txn) createTable(c *clusterpb.CreateTable) *clusterpb.Result {
	table, err := newTable(c.GetDescriptor_())
	if err != nil {
		return refuseErr(err)
	}
	d := table.Descriptor
	if len(c.GetUuid()) != len(table.UUID) || [16]byte(c.GetUuid()) == [16]byte{} {
		return invalid("create table %s.%s: its uuid must be 16 random bytes, it is %x", d.Database, d.Table, c.GetUuid())
	}
	table.UUID = [16]byte(c.GetUuid())
	if _, found := t.s.databases.get(d.Database); !found {
		return notExist("create table %s.%s: database %q does not exist, create it first", d.Database, d.Table, d.Database)
	}
	if old, found := t.s.TableByName(d.Database, d.Table); found {
		if c.GetIfNotExists() {
			return okID(int64(old.ID))
		}
		return exists("table %s.%s exists already, its id is %d", d.Database, d.Table, old.ID)
	}
	if old, found := t.s.TableByUUID(table.UUID); found {
		return conflict("create table %s.%s: its uuid is that of table %d", d.Database, d.Table, old.ID)
	}
	table.ID = t.s.nextTable
	t.s.nextTable++
	table.CreatedMs, table.ModifiedMs = t.s.timeMs, t.s.timeMs
	t.s.tables.set(table.ID, table)
	t.s.tableNames.set(tableKey(d.Database, d.Table), table.ID)
	t.s.tableUUIDs.set(string(table.UUID[:]), table.ID)
	t.syncSinks(table)
	r := okID(int64(table.ID))
	if len(d.PartitionKeys) == 0 {
		r.Ids = []int64{int64(t.addPartition(table, nil, false))}
	}
	return r
}

func (t *txn) addPartition(table *Table, values []string, automatic bool) mink.PartitionID {
	id := t.s.nextPartition
	t.s.nextPartition++
	p := &Partition{ID: id, Table: table.ID, Values: values, Automatic: automatic, CreatedMs: t.s.timeMs}
	p.Streams = t.newStreams(table.ID, id, 0, table.Descriptor.BucketCount)
	t.s.partitions.set(id, p)
	t.s.partsOf.set(tablePartition{table.ID, id})
	t.s.partValues.set(partitionKey(table.ID, values), id)
	t.tierStreams(table, p.Streams)
	return id
}

// MaxNewBuckets bounds the buckets that one alter adds, over all partitions.
const MaxNewBuckets = 1 << 16

// alterTable applies changes to the descriptor, and gives every partition the
// buckets that it lacks then; id is the schema version after.
func (t *txn) alterTable(c *clusterpb.AlterTable) *clusterpb.Result {
	table, found := t.s.tables.get(mink.TableID(c.GetTable()))
	if !found {
		return notExist("table %d does not exist", c.GetTable())
	}
	d := table.Descriptor
	if want := c.GetExpectedSchema(); want != 0 && mink.SchemaID(want) != d.Schema.ID {
		return conflict("alter table %s.%s: expected schema version %d, it is %d: read it again", d.Database, d.Table, want, d.Schema.ID)
	}
	next, err := table.altered(c.GetChanges())
	if err != nil {
		return refuseErr(err)
	}
	more := next.Descriptor.BucketCount - d.BucketCount
	var short []*Partition
	if more > 0 {
		short = slices.Collect(t.s.Partitions(table.ID))
		if n := int64(more) * int64(len(short)); n > MaxNewBuckets {
			return invalid("alter table %s.%s: %d more buckets in each of %d partitions are %d, at most %d are allowed at once", d.Database, d.Table, more, len(short), n, MaxNewBuckets)
		}
	}
	if r := t.checkSinks(next); r != nil {
		return r
	}
	next.ModifiedMs = t.s.timeMs
	t.s.tables.set(next.ID, next)
	if column, _ := autoIncrementColumn(&next.Descriptor.Schema); column == "" { // dropped, perhaps: no other can be added
		t.s.autoIncrement.del(next.ID)
	}
	for _, p := range short {
		grown := *p
		added := t.newStreams(p.Table, p.ID, d.BucketCount, next.Descriptor.BucketCount)
		grown.Streams = slices.Concat(p.Streams, added)
		t.s.partitions.set(p.ID, &grown)
		t.tierStreams(next, added)
	}
	t.syncSinks(next)
	return okID(int64(next.Descriptor.Schema.ID))
}

func (t *txn) dropTable(c *clusterpb.DropTable) *clusterpb.Result {
	table, found := t.s.tables.get(mink.TableID(c.GetTable()))
	if !found {
		if c.GetIfExists() {
			return ok()
		}
		return notExist("table %d does not exist", c.GetTable())
	}
	t.removeTable(table)
	t.settle()
	return okID(int64(table.ID))
}

func (t *txn) removeTable(table *Table) {
	for _, p := range slices.Collect(t.s.Partitions(table.ID)) {
		t.removePartition(p)
	}
	t.dropSinks(table)
	t.s.tables.del(table.ID)
	t.s.autoIncrement.del(table.ID)
	t.s.tableNames.del(tableKey(table.Descriptor.Database, table.Descriptor.Table))
	t.s.tableUUIDs.del(string(table.UUID[:]))
}

func (t *txn) removePartition(p *Partition) {
	t.forgetBuckets(p)
	for _, id := range p.Streams {
		t.dropStream(id)
	}
	t.s.partitions.del(p.ID)
	t.s.partsOf.del(tablePartition{p.Table, p.ID})
	t.s.partValues.del(partitionKey(p.Table, p.Values))
}

func (t *txn) createPartition(c *clusterpb.CreatePartition) *clusterpb.Result {
	table, found := t.s.tables.get(mink.TableID(c.GetTable()))
	if !found {
		return notExist("create partition %q: table %d does not exist", c.GetValues(), c.GetTable())
	}
	d := table.Descriptor
	switch {
	case len(d.PartitionKeys) == 0:
		return invalid("create partition %q: table %s.%s has no partition keys", c.GetValues(), d.Database, d.Table)
	case len(c.GetValues()) != len(d.PartitionKeys):
		return invalid("create partition %q of table %s.%s: %d values for %d partition keys", c.GetValues(), d.Database, d.Table, len(c.GetValues()), len(d.PartitionKeys))
	}
	for i, v := range c.GetValues() {
		if len(v) > MaxPartitionValue {
			return invalid("create partition of table %s.%s: the value of %q has %d bytes, at most %d are allowed", d.Database, d.Table, d.PartitionKeys[i], len(v), MaxPartitionValue)
		}
	}
	if old, found := t.s.PartitionByValues(table.ID, c.GetValues()); found {
		switch {
		case old.Closed:
			return conflict("partition %q of table %s.%s is closed and about to be dropped", old.Values, d.Database, d.Table)
		case c.GetIfNotExists():
			return okID(int64(old.ID))
		}
		return exists("partition %q of table %s.%s exists already, its id is %d", old.Values, d.Database, d.Table, old.ID)
	}
	return okID(int64(t.addPartition(table, slices.Clone(c.GetValues()), c.GetAutomatic())))
}

// partition finds a partition of a partitioned table for closing or dropping.
func (t *txn) partition(verb string, table, id int64) (*Partition, *clusterpb.Result) {
	p, found := t.s.partitions.get(mink.PartitionID(id))
	if !found || p.Table != mink.TableID(table) {
		return nil, notExist("%s partition %d: table %d has no such partition", verb, id, table)
	}
	if tab, found := t.s.tables.get(p.Table); found && len(tab.Descriptor.PartitionKeys) == 0 {
		return nil, invalid("%s partition %d: table %s.%s has no partition keys, drop the table instead", verb, id, tab.Descriptor.Database, tab.Descriptor.Table)
	}
	return p, nil
}

func (t *txn) closePartition(c *clusterpb.ClosePartition) *clusterpb.Result {
	p, r := t.partition("close", c.GetTable(), c.GetPartition())
	if r != nil {
		return r
	}
	if !p.Closed {
		closed := *p
		closed.Closed = true
		t.s.partitions.set(p.ID, &closed)
	}
	return okID(int64(p.ID))
}

// dropPartition drops a partition. Rows on their way to a sink go there first: until
// then the partition is only closed, and whoever watches drops it again.
func (t *txn) dropPartition(c *clusterpb.DropPartition) *clusterpb.Result {
	p, r := t.partition("drop", c.GetTable(), c.GetPartition())
	if r != nil {
		if r.Code == clusterpb.Code_NOT_EXIST && c.GetIfExists() {
			return ok()
		}
		return r
	}
	if why := t.s.Waiting(p); why != "" && !c.GetNow() {
		if !p.Closed {
			closed := *p
			closed.Closed = true
			t.s.partitions.set(p.ID, &closed)
		}
		r := okID(int64(p.ID))
		r.Message = okNote("partition %q of table %d is closed, and dropped once its sinks have it: %s", p.Values, p.Table, why).GetMessage()
		return r
	}
	t.rememberFormer(p)
	t.removePartition(p)
	t.settle()
	return okID(int64(p.ID))
}
