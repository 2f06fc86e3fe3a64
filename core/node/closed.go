package node

import (
	"fmt"
	"strings"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// closedNamed is how many buckets a text about closed ones names.
const closedNamed = 5

// closedBuckets is the text about buckets that do not open by themselves: the
// first ones by name, grouped by what keeps them closed, and how many there are.
type closedBuckets struct {
	count  int
	groups []closedGroup
}

type closedGroup struct {
	why     string
	buckets []string
}

func (c *closedBuckets) add(view *cluster.State, ref mink.BucketRef, why string) {
	c.count++
	if c.count > closedNamed {
		return
	}
	name := fmt.Sprintf("bucket %s", ref)
	if t, ok := view.Table(ref.Table); ok {
		name = fmt.Sprintf("%s bucket %d (%s)", t.Descriptor.Name(), ref.Index, ref)
	}
	for i := range c.groups {
		if g := &c.groups[i]; g.why == why {
			g.buckets = append(g.buckets, name)
			return
		}
	}
	c.groups = append(c.groups, closedGroup{why, []string{name}})
}

// String is "" when no bucket is closed.
func (c *closedBuckets) String() string {
	if c.count == 0 {
		return ""
	}
	parts := make([]string, len(c.groups))
	for i, g := range c.groups {
		parts[i] = strings.Join(g.buckets, ", ") + ": " + g.why
	}
	text := "1 bucket is closed: "
	if c.count > 1 {
		text = fmt.Sprintf("%d buckets are closed: ", c.count)
	}
	text += strings.Join(parts, "; ")
	if c.count > closedNamed {
		text += fmt.Sprintf("; and %d more", c.count-closedNamed)
	}
	return text
}
