package e2e

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
)

// figure reads one metric without labels from the node's HTTP port; -1 when it
// is not there.
func (n *node) figure(name string) float64 {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://"+n.http+"/metrics", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				n.t.Fatalf("metric %s: %v", name, err)
			}
			return f
		}
	}
	return -1
}
