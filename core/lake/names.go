package lake

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Below a table's directory, lake/<database>/<table>-<table id>, the sink keeps
//
//	data/<round>/<partition>-<bucket>-<n>.parquet          rows of one bucket
//	data/<round>/<partition>-<bucket>-<n>-deletes.parquet  deletes of one bucket
//	metadata/_mink-offsets-<round>-<crc>.json              offsets too long for a summary
//	_staged/<round>.open, .files, .decision                of rounds that are not done; see staged.go
//
// and the library keeps metadata/. What no Iceberg metadata name begins with an
// underscore: engines that remove orphan files pass over such names.
const (
	dataDir     = "data/"
	metadataDir = "metadata/"
	stagedDir   = "_staged/"
)

const (
	dataSuffix    = ".parquet"
	deletesSuffix = "-deletes.parquet"
)

// tableDir is the directory of a table, with a slash at its end.
func tableDir(spec sink.TableSpec) string {
	return TableDir(spec.Database, spec.Name, strconv.FormatInt(int64(spec.ID), 10)) + "/"
}

func roundDir(round sink.RoundID) string { return dataDir + string(round) + "/" }

func fileName(round sink.RoundID, b mink.BucketRef, n int, suffix string) string {
	return fmt.Sprintf("%s%d-%d-%d%s", roundDir(round), b.Partition, b.Index, n, suffix)
}

// BucketOf is the bucket whose rows or deletes a file of Mink's has, by its
// location. Files of other writers, such as what an engine's compaction made, are
// of no bucket: their rows may be of any.
func BucketOf(location string) (mink.BucketRef, bool) {
	parts := strings.Split(location, "/")
	n := len(parts)
	if n < 4 || parts[n-3] != strings.TrimSuffix(dataDir, "/") || sink.RoundID(parts[n-2]).Validate() != nil {
		return mink.BucketRef{}, false
	}
	i := strings.LastIndexByte(parts[n-4], '-')
	if i < 0 {
		return mink.BucketRef{}, false
	}
	name, ok := strings.CutSuffix(parts[n-1], dataSuffix)
	name = strings.TrimSuffix(name, strings.TrimSuffix(deletesSuffix, dataSuffix))
	numbers := strings.Split(name, "-")
	if !ok || len(numbers) != 3 {
		return mink.BucketRef{}, false
	}
	table, okTable := number(parts[n-4][i+1:], math.MaxInt64)
	partition, okPartition := number(numbers[0], math.MaxInt64)
	index, okIndex := number(numbers[1], math.MaxInt32)
	_, okNumber := number(numbers[2], math.MaxInt32)
	if !okTable || !okPartition || !okIndex || !okNumber || table == 0 {
		return mink.BucketRef{}, false
	}
	return mink.BucketRef{Table: mink.TableID(table), Partition: mink.PartitionID(partition), Index: int32(index)}, true
}

// number reads what strconv writes, and nothing else.
func number(text string, limit int64) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n <= limit && strconv.FormatInt(n, 10) == text
}
