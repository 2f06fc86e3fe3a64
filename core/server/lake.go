package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/icebergrest"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/ops"
	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/storescan"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// catalogLocal is the value of lake_catalog for the catalog in a database of Mink's.
const catalogLocal = "local"

// lakeCatalogURL is the database of the local catalog, in effect.
func (c Config) lakeCatalogURL() string {
	switch meta := c.metaURL(); {
	case c.LakeCatalogURL != "":
		return c.LakeCatalogURL
	case schemeOf(meta) == "postgres" || schemeOf(meta) == "postgresql":
		return meta
	}
	return "sqlite:" + filepath.Join(c.DataDir, "catalog.db")
}

// lakeRoot is the store's URI as other engines on this machine or in this cloud use it.
func lakeRoot(uri string) (string, error) {
	dir, ok := strings.CutPrefix(uri, "file://")
	if !ok {
		return uri, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("storage_uri %s: %w", uri, err)
	}
	return "file://" + filepath.ToSlash(abs), nil
}

// checkLakeCatalog refuses what names no catalog, and options that nothing would read.
func (c Config) checkLakeCatalog() error {
	switch {
	case c.LakeCatalog == catalogLocal || c.LakeCatalog == off:
		if len(c.LakeCatalogOptions) > 0 {
			return fmt.Errorf("lake_catalog_options is set, and lake_catalog = %q takes no options: they are for plugins", c.LakeCatalog)
		}
	case !pluginName.MatchString(c.LakeCatalog):
		return fmt.Errorf("lake_catalog is %q; it must be local, off, or the name of a catalog plugin, such as rest or glue", c.LakeCatalog)
	case c.LakeCatalogURL != "":
		return fmt.Errorf("lake_catalog_url is set, and is of lake_catalog = \"local\" alone, not of the plugin %s: give its options in lake_catalog_options", c.LakeCatalog)
	}
	return nil
}

var pluginName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// openCatalog opens the catalog that the configuration names; where says for messages
// which one it is.
func openCatalog(ctx context.Context, plugins *pluginhost.Host, c Config) (_ catalog.Catalog, where string, err error) {
	if c.LakeCatalog == catalogLocal {
		url := c.lakeCatalogURL()
		local, err := sqlcatalog.Open(ctx, url, sqlcatalog.Default())
		if err != nil {
			return nil, "", fmt.Errorf("lake_catalog_url %s: %w", redactURL(url), err)
		}
		return local, "built in, " + redactURL(url), nil
	}
	in, err := plugins.FindCatalog(c.LakeCatalog, c.LakeCatalogOptions)
	if err != nil {
		return nil, "", fmt.Errorf("lake_catalog = %q: %w", c.LakeCatalog, err)
	}
	opened, err := plugins.OpenCatalog(ctx, c.LakeCatalog, c.LakeCatalogOptions)
	if err != nil {
		return nil, "", fmt.Errorf("lake_catalog = %q: %w", c.LakeCatalog, err)
	}
	return opened, fmt.Sprintf("plugin %s %s, %s", in.Manifest.Name, in.Manifest.Version, in.Path), nil
}

// checkLake tries the catalog; the local one's database is not touched.
func checkLake(ctx context.Context, plugins *pluginhost.Host, cfg Config) (line string, err error) {
	if cfg.LakeCatalog == catalogLocal || cfg.LakeCatalog == off {
		return "", nil
	}
	c, where, err := openCatalog(ctx, plugins, cfg)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := c.ListNamespaces(ctx, catalog.ListNamespacesRequest{Limit: 1}); err != nil {
		return "", fmt.Errorf("lake_catalog = %q: it opens and cannot be read: %w", cfg.LakeCatalog, err)
	}
	return fmt.Sprintf("lake_catalog %s: opened and read (%s)", cfg.LakeCatalog, where), nil
}

// openLake opens the catalog. One that keeps pointers is mounted at /iceberg; one that
// computes metadata is what other engines use themselves.
func (p *parts) openLake(ctx context.Context) error {
	if err := p.openWarehouse(ctx); err != nil || p.warehouse == nil || p.warehouse.Catalog().Describe().Commit != catalog.SwapsMetadata {
		return err
	}
	p.iceberg = icebergrest.New(&lake.Guard{Warehouse: p.warehouse, Owned: p.tieredToLake, Pinned: p.pinnedInLake},
		icebergrest.Config{Token: p.cfg.IcebergToken, Client: lakeClient(p.cfg)}, p.logger)
	p.ops.Mount("/iceberg", p.iceberg)
	return nil
}

// openWarehouse opens the catalog, once. A store whose place cannot be a location of
// Iceberg's leaves the node without a lake.
func (p *parts) openWarehouse(ctx context.Context) error {
	if p.cfg.LakeCatalog == off || p.warehouse != nil {
		return nil
	}
	root, err := lakeRoot(p.cfg.storageURI())
	if err == nil {
		_, err = lake.NewRoot(root)
	}
	if err != nil {
		p.logger.Warn("there is no lake: its files would have no place that other engines find; lake_catalog = \"off\" says that this is meant", "error", err)
		return nil
	}
	c, _, err := openCatalog(ctx, p.plugins, p.cfg)
	if err != nil {
		return err
	}
	wcfg := lake.WarehouseConfig{Store: p.objects, Root: root, Catalog: c, CacheBytes: min(64<<20, memoryLimit()/32), Logger: p.logger}
	if p.given.WrapLake != nil {
		wcfg = p.given.WrapLake(wcfg)
	}
	w, err := lake.NewWarehouse(wcfg)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	p.warehouse = w
	return nil
}

// sinkStates are what sinks have of the tables that were ever tiered. A lake that does not
// answer is an error: offsets that only it has would be given out again.
func (p *parts) sinkStates(ctx context.Context, state *cluster.State) ([]storescan.SinkState, error) {
	var out []storescan.SinkState
	for t := range state.EveryTiering() {
		table, ok := state.Table(t.Table)
		if !ok {
			continue
		}
		if err := p.openWarehouse(ctx); err != nil {
			return nil, err
		}
		s := storescan.SinkState{Table: t.Table, Sink: t.Sink}
		switch d := table.Descriptor; {
		case t.Sink != cluster.LakeSink:
			s.Unknown = "only the lake is asked when metadata are restored"
		case p.warehouse == nil:
			s.Unknown = "this node has no lake (lake_catalog)"
		default:
			have, _, err := p.warehouse.Standing(ctx, d.Database, d.Table, t.Table)
			switch {
			case errors.Is(err, sink.ErrCorrupt):
				s.Unknown = err.Error()
			case err != nil:
				return nil, fmt.Errorf("the lake has rows of table %s, and how many could not be found out; mend that and repeat: %w", d.Name(), err)
			}
			s.Fence, s.Schema, s.Ends = have.Fence, have.Schema, have.Ends
		}
		out = append(out, s)
	}
	return out, nil
}

// tieredToLake says whether Mink writes a table to the lake. A table that the node's view has
// not heard of may have been made elsewhere just now: catalog.ErrUnavailable.
func (p *parts) tieredToLake(id mink.TableID) (bool, error) {
	view := p.replica.View()
	if view == nil {
		return false, fmt.Errorf("%w: this node has no metadata yet, and cannot tell whether Mink writes the table", catalog.ErrUnavailable)
	}
	if _, found := view.Table(id); !found && !view.TableGone(id) {
		return false, fmt.Errorf("%w: this node has not heard of Mink's table %d yet, and cannot tell whether Mink writes it", catalog.ErrUnavailable, id)
	}
	_, ok := view.Tiering(id, cluster.LakeSink)
	return ok, nil
}

// pinnedInLake are the lake snapshots of a table that readers may still have.
func (p *parts) pinnedInLake(id mink.TableID) (ids []int64) {
	view := p.replica.View()
	if view == nil {
		return nil
	}
	t, ok := view.Tiering(id, cluster.LakeSink)
	if !ok {
		return nil
	}
	for _, s := range t.Snapshots {
		var n int64
		if _, err := fmt.Sscan(s.Snapshot, &n); err == nil {
			ids = append(ids, n)
		}
	}
	return ids
}

// checkLakeNames refuses a table whose names the lake's catalog cannot take. A node without a
// lake lets it pass: another may have one.
func (p *parts) checkLakeNames(d *schema.Descriptor) error {
	if p.warehouse == nil {
		return nil
	}
	id := catalog.Identifier{Namespace: []string{d.Database}, Name: d.Table}
	if err := p.warehouse.Catalog().Describe().CheckTable(id); err != nil {
		return fmt.Errorf("%w by the lake: %v (lake_catalog = %q); make the table under another name, or without lake=true", mink.ErrUnsupported, err, p.cfg.LakeCatalog) //nolint:errorlint // the class is the lake's
	}
	return nil
}

// lakeClient tells clients how to reach the store, by names that Iceberg's clients
// share. Credentials are theirs to bring.
func lakeClient(c Config) map[string]string {
	if schemeOf(c.storageURI()) != "s3" {
		return nil
	}
	out := map[string]string{}
	for option, property := range map[string]string{"endpoint": "s3.endpoint", "region": "s3.region"} {
		if v := c.StorageOptions[option]; v != "" {
			out[property] = v
		}
	}
	if c.StorageOptions["path_style"] == "true" || c.StorageOptions["endpoint"] != "" {
		out["s3.path-style-access"] = "true"
	}
	return out
}

func (p *parts) lakeFigures() []ops.Figure {
	if p.warehouse == nil {
		return nil
	}
	s := p.warehouse.Files().Stats()
	var out []ops.Figure
	for _, c := range []struct {
		op string
		n  int64
	}{{"get", s.Gets}, {"head", s.Heads}, {"put", s.Puts}, {"delete", s.Deletes}} {
		out = append(out, ops.Figure{
			Name: "mink_lake_file_requests_total", Help: "Requests for files of the lake through the Iceberg library.", Counter: true,
			Labels: []string{"op"}, Values: []string{c.op}, Value: float64(c.n),
		})
	}
	for class := 1; class <= 5 && p.iceberg != nil; class++ {
		out = append(out, ops.Figure{
			Name: "mink_iceberg_requests_total", Help: "Requests of clients at /iceberg, by the first digit of the answer's status.", Counter: true,
			Labels: []string{"status"}, Values: []string{fmt.Sprintf("%dxx", class)}, Value: float64(p.iceberg.Requests(class)),
		})
	}
	return append(out,
		ops.Figure{Name: "mink_lake_read_bytes_total", Help: "Bytes of lake files read through the Iceberg library.", Counter: true, Value: float64(s.BytesRead)},
		ops.Figure{Name: "mink_lake_written_bytes_total", Help: "Bytes of lake files written through the Iceberg library.", Counter: true, Value: float64(s.BytesWritten)},
		ops.Figure{Name: "mink_lake_cache_hits_total", Help: "Metadata and manifests of the lake that were in memory.", Counter: true, Value: float64(s.CacheHits)})
}
