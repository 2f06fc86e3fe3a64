package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// mink is the program, built of this tree.
var mink string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mink-deploy")
	if err == nil {
		mink = filepath.Join(dir, "mink")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", mink, "../cmd/mink").CombinedOutput(); err != nil {
			err = fmt.Errorf("build mink: %w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// start is how something starts a node.
type start struct {
	args []string // of mink: serve and its flags
	env  map[string]string
	file string // what --config names is; "": there is none
}

// try asks the program itself; it answers what it says, with exit code 0.
func (s start) try(t *testing.T) (string, error) {
	t.Helper()
	args := slices.Clone(s.args)
	if s.file != "" {
		i := slices.Index(args, "--config")
		if i < 0 || i+1 == len(args) {
			return "", fmt.Errorf("there is a file and no --config in %v", args)
		}
		args[i+1] = filepath.Join(t.TempDir(), "mink.toml")
		if err := os.WriteFile(args[i+1], []byte(s.file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(args, "--check-config=keys") {
		args = append(args, "--check-config=keys")
	}
	cmd := exec.CommandContext(t.Context(), mink, args...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("mink %s: %w: %s", strings.Join(args, " "), err, errOut.String())
	}
	return out.String(), nil
}

// sound fails the test unless the configuration is valid, without a warning.
func (s start) sound(t *testing.T, what string) {
	t.Helper()
	out, err := s.try(t)
	if err != nil || strings.Contains(out, "warning") || !strings.Contains(out, "the configuration is valid") {
		t.Errorf("%s: %v\n%s", what, err, out)
	}
}

// The checks below are worth nothing if the program let anything through.
func TestWhatIsWrongIsNoticed(t *testing.T) {
	good := start{args: []string{"serve", "--config", "x"}, env: map[string]string{"MINK_LEASE_TTL": "10s"}, file: "node_id = 3\nmeta_url = \"postgres://db/mink\"\nstorage_uri = \"s3://b\"\n" +
		"advertise = \"a:1\"\nkafka_advertise = \"a:2\"\n"}
	good.sound(t, "the sound one")
	for what, change := range map[string]func(*start){
		"an unknown variable": func(s *start) { s.env["MINK_PORT"] = "tcp://10.0.0.1:9123" },
		"an unknown key":      func(s *start) { s.file += "leese_ttl = \"3s\"\n" },
		"an unknown flag":     func(s *start) { s.args = append(s.args, "--listne=x") },
		"a wrong value":       func(s *start) { s.env["MINK_LEASE_TTL"] = "10" },
		"nobody's address":    func(s *start) { s.env["MINK_ADVERTISE"] = "0.0.0.0:9123" },
	} {
		s := start{args: slices.Clone(good.args), env: maps.Clone(good.env), file: good.file}
		change(&s)
		if out, err := s.try(t); err == nil {
			t.Errorf("%s passes: %s", what, out)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// image is the last stage of the Dockerfile that is called node.
func image(t *testing.T) (env map[string]string, entrypoint, command []string) {
	t.Helper()
	env = map[string]string{}
	stages, in := map[string]bool{}, false
	text := strings.ReplaceAll(read(t, "Dockerfile"), "\\\n", " ")
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		list := func() (out []string) {
			if err := json.Unmarshal([]byte(rest), &out); err != nil {
				t.Errorf("%s is not in exec form: %v", line, err)
			}
			return out
		}
		switch word {
		case "FROM":
			f := strings.Fields(rest)
			if len(f) != 3 || f[1] != "AS" || !stages[f[0]] && !regexp.MustCompile(`:\d`).MatchString(f[0]) {
				t.Errorf("%q: want a stage with a name, of a stage before or an image with a version", line)
				continue
			}
			stages[f[2]], in = true, f[2] == "node"
		case "ENV":
			for _, kv := range strings.Fields(rest) {
				if k, v, ok := strings.Cut(kv, "="); ok && in {
					env[k] = v
				}
			}
		case "ENTRYPOINT":
			if in {
				entrypoint = list()
			}
		case "CMD":
			if in {
				command = list()
			}
		case "USER":
			if in && !strings.HasPrefix(rest, "65532") {
				t.Errorf("the node runs as %s", rest)
			}
		}
	}
	if !stages["node"] || !stages["s3-server"] {
		t.Errorf("stages %v", stages)
	}
	return env, entrypoint, command
}

func TestImage(t *testing.T) {
	env, entrypoint, command := image(t)
	if !slices.Equal(entrypoint, []string{"/usr/bin/mink"}) {
		t.Errorf("the entry point is %v", entrypoint)
	}
	start{args: command, env: env}.sound(t, "the image")
	text := read(t, "Dockerfile")
	for _, m := range regexp.MustCompile(`(?m)(scripts/\S+|\./cmd/\S+) `).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
			t.Error(err)
		}
	}
	for _, m := range regexp.MustCompile(`objstore-\w+`).FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join("..", "plugins", m)); err != nil {
			t.Error(err)
		}
	}
	if v := regexp.MustCompile(`versitygw@(\S+)`).FindStringSubmatch(text); v == nil || !strings.Contains(read(t, "../scripts/cloud-servers.sh"), "versitygw@"+v[1]+"\n") {
		t.Errorf("the S3 server is not the one of the tests: %v", v)
	}
	if goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod")); !strings.Contains(text, "golang:"+goVersion[1]+"-") {
		t.Errorf("go.mod wants Go %s", goVersion[1])
	}
}

func TestCompose(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Image       string
			Build       struct{ Context, Dockerfile, Target string }
			Command     []string
			Environment map[string]string
			Ports       []string
			Volumes     []string
			DependsOn   map[string]any `yaml:"depends_on"`
			Grace       string         `yaml:"stop_grace_period"`
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	imageEnv, _, _ := image(t)
	seen, nodes := map[string]string{}, 0
	unique := func(service, what, value string) {
		t.Helper()
		if other, ok := seen[what+value]; ok || value == "" {
			t.Errorf("%s: %s %q is %q's too, or missing", service, what, value, other)
		}
		seen[what+value] = service
	}
	for name, s := range file.Services {
		for _, p := range s.Ports {
			unique(name, "port", p)
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond loopback", name, p)
			}
		}
		for _, v := range s.Volumes {
			volume, _, _ := strings.Cut(v, ":")
			if _, ok := file.Volumes[volume]; !ok {
				t.Errorf("%s: volume %s is not declared", name, volume)
			}
			unique(name, "volume", volume)
		}
		for d := range s.DependsOn {
			if _, ok := file.Services[d]; !ok {
				t.Errorf("%s depends on %s, which is none", name, d)
			}
		}
		if s.Build.Target != "node" {
			continue
		}
		nodes++
		if s.Build.Dockerfile != "deploy/Dockerfile" || s.Build.Context != ".." || s.Grace != "90s" {
			t.Errorf("%s is built of %+v, has %s to stop", name, s.Build, s.Grace)
		}
		env := maps.Clone(imageEnv)
		maps.Copy(env, s.Environment)
		start{args: s.Command, env: env}.sound(t, name)
		unique(name, "node id", env["MINK_NODE_ID"])
		for _, a := range []string{"MINK_ADVERTISE", "MINK_KAFKA_ADVERTISE"} {
			unique(name, a, env[a])
			host, port, _ := strings.Cut(env[a], ":")
			listens := env[strings.Replace(a, "ADVERTISE", "LISTEN", 1)]
			if host != name || !strings.HasSuffix(listens, ":"+port) || !slices.Contains(s.Ports, "127.0.0.1:"+port+":"+port) {
				t.Errorf("%s advertises %s, listens on %s, publishes %v", name, env[a], listens, s.Ports)
			}
		}
		for _, key := range []string{"MINK_META_URL", "MINK_STORAGE_OPTIONS"} { // hosts that are services
			for _, m := range regexp.MustCompile(`(?:@|http://)([^:/,]+)`).FindAllStringSubmatch(env[key], -1) {
				if _, ok := file.Services[m[1]]; !ok {
					t.Errorf("%s: %s names %s, which is no service", name, key, m[1])
				}
			}
		}
		if env["AWS_ACCESS_KEY_ID"] != file.Services["s3"].Environment["ROOT_ACCESS_KEY"] || env["AWS_SECRET_ACCESS_KEY"] != file.Services["s3"].Environment["ROOT_SECRET_KEY"] {
			t.Errorf("%s: its keys are not the S3 server's", name)
		}
	}
	if nodes != 3 {
		t.Errorf("%d nodes", nodes)
	}
}

func envFile(text string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(k, "#") {
			env[k] = v
		}
	}
	return env
}

func TestUnit(t *testing.T) {
	text := read(t, "mink.service")
	env := envFile(read(t, "mink.env"))
	var starts [][]string
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "ExecStart", "ExecStartPre":
			starts = append(starts, strings.Fields(value))
		case "Environment":
			k, v, _ := strings.Cut(value, "=")
			env[k] = v
		}
	}
	if len(starts) != 2 {
		t.Fatalf("starts %v", starts)
	}
	for _, s := range starts {
		if s[0] != "/usr/bin/mink" {
			t.Errorf("it starts %s", s[0])
		}
		start{args: s[1:], env: env, file: read(t, "mink.toml")}.sound(t, strings.Join(s, " "))
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("left out: systemd-analyze verify, there is none")
		return
	}
	unit := filepath.Join(t.TempDir(), "mink.service")
	for word, bad := range map[string]bool{"TimeoutStopSec": false, "TimeoutStopSecs": true} {
		changed := strings.ReplaceAll(strings.ReplaceAll(text, "/usr/bin/mink", mink), "TimeoutStopSec=", word+"=")
		if err := os.WriteFile(unit, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
		said := false
		for line := range strings.Lines(string(out)) { // other units of the machine are not ours
			said = said || strings.Contains(line, "mink.service")
		}
		if said != bad {
			t.Errorf("systemd-analyze with %s: %v: %s", word, err, out)
		}
	}
}

// helm is the program that scripts/test.sh installs, or the machine's.
func helm(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../.cache/helm/bin/helm")
	if err == nil {
		if _, err = os.Stat(path); err != nil {
			path, err = exec.LookPath("helm")
		}
	}
	if err != nil {
		if os.Getenv("MINK_TEST_HELM") == "required" {
			t.Fatal(err)
		}
		t.Skip("no helm: scripts/test.sh installs it")
	}
	return path
}

type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     yaml.Node
}

type workload struct {
	Replicas    int
	ServiceName string `yaml:"serviceName"`
	Ordinals    struct{ Start int }
	Template    struct {
		Spec struct {
			Links      *bool `yaml:"enableServiceLinks"`
			Grace      int   `yaml:"terminationGracePeriodSeconds"`
			Containers []struct {
				Image string
				Args  []string
				Env   []struct {
					Name, Value string
					ValueFrom   struct {
						FieldRef struct {
							FieldPath string `yaml:"fieldPath"`
						} `yaml:"fieldRef"`
						SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
					} `yaml:"valueFrom"`
				}
				EnvFrom []struct {
					SecretRef struct{ Name string } `yaml:"secretRef"`
				} `yaml:"envFrom"`
				Ports []struct {
					Name          string
					ContainerPort int `yaml:"containerPort"`
				}
				VolumeMounts []struct{ Name string } `yaml:"volumeMounts"`
			}
			Volumes []struct{ Name string }
		}
	}
	Claims []struct{ Metadata struct{ Name string } } `yaml:"volumeClaimTemplates"`
}

func render(t *testing.T, args ...string) (map[string]object, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), helm(t), append([]string{"template", "mink", "chart", "--namespace", "streams", "--kube-version", "1.33.0"}, args...)...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, errOut.String())
	}
	objects := map[string]object{}
	for dec := yaml.NewDecoder(bytes.NewReader(out)); ; {
		var o object
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			t.Fatalf("the rendered chart is no YAML: %v", err)
		}
		objects[o.Kind+"/"+o.Metadata.Name] = o
	}
}

func TestChart(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), helm(t), "lint", "--strict", "chart").CombinedOutput(); err != nil {
		t.Errorf("helm lint: %v: %s", err, out)
	}
	for what, args := range map[string][]string{
		"as it is":   nil,
		"all set":    {"--set", "data.persistent=true,data.storageClassName=fast,antiAffinity=hard,config.wal_batch_bytes=4194304,config.kafka_database=topics,config.auto_create_topics=false,envFromSecrets[0]=s3,image.tag=v1,replicas=5,nodeSelector.disk=fast,podAnnotations.a=b,networkPolicy.from[0].namespaceSelector.matchLabels.a=b"},
		"little set": {"--set", "podDisruptionBudget.enabled=false,networkPolicy.enabled=false,serviceAccount.create=false,antiAffinity=none"},
	} {
		t.Run(what, func(t *testing.T) {
			objects, err := render(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			checkChart(t, objects)
			all := len(args) == 0 || strings.Contains(args[1], "hard")
			for _, o := range []string{"PodDisruptionBudget/mink", "NetworkPolicy/mink", "ServiceAccount/mink"} {
				if _, ok := objects[o]; ok != all {
					t.Errorf("%s is there: %t", o, ok)
				}
			}
		})
	}
	for what, set := range map[string]string{
		"an unknown value": "replica=3", "a directory store": "config.storage_uri=file:///data", "the chart's own key": "config.listen=0.0.0.0:1", "no time to stop": "terminationGracePeriodSeconds=10",
	} {
		if _, err := render(t, "--set", set); err == nil {
			t.Errorf("%s: --set %s is taken", what, set)
		}
	}
	objects, err := render(t, "--set", "config.leese_ttl=3s") // the node, not the schema, knows its keys
	if err != nil {
		t.Fatal(err)
	}
	if out, err := startOf(t, objects, 1).try(t); err == nil || !strings.Contains(err.Error(), "lease_ttl") {
		t.Errorf("a mistyped key: %v %s", err, out)
	}
}

// startOf is how the pod with a number starts its node.
func startOf(t *testing.T, objects map[string]object, pod int) start {
	t.Helper()
	var w workload
	set := objects["StatefulSet/mink"]
	if err := set.Spec.Decode(&w); err != nil || len(w.Template.Spec.Containers) != 1 {
		t.Fatalf("the stateful set: %v, %d containers", err, len(w.Template.Spec.Containers))
	}
	c := w.Template.Spec.Containers[0]
	all, _, _ := image(t)
	for _, e := range c.Env {
		v := e.Value
		switch {
		case e.ValueFrom.FieldRef.FieldPath == "metadata.name":
			v = fmt.Sprintf("mink-%d", pod)
		case e.ValueFrom.FieldRef.FieldPath == "metadata.namespace":
			v = "streams"
		case strings.Contains(e.ValueFrom.FieldRef.FieldPath, "pod-index"):
			v = fmt.Sprint(pod)
		case e.ValueFrom.SecretKeyRef.Key != "":
			v = "postgres://mink:secret@db.example.org/mink"
		}
		for k, known := range all { // as the kubelet: of variables before
			v = strings.ReplaceAll(v, "$("+k+")", known)
		}
		if v == "" || strings.Contains(v, "$(") {
			t.Errorf("variable %s is %q", e.Name, v)
		}
		all[e.Name] = v
	}
	return start{args: c.Args, env: all, file: objects["ConfigMap/mink"].Data["mink.toml"]}
}

func checkChart(t *testing.T, objects map[string]object) {
	t.Helper()
	var w workload
	set := objects["StatefulSet/mink"]
	if err := set.Spec.Decode(&w); err != nil {
		t.Fatal(err)
	}
	spec := w.Template.Spec
	if w.Ordinals.Start != 1 || w.Replicas < 3 || spec.Links == nil || *spec.Links || spec.Grace < 50 {
		t.Errorf("ordinals from %d, %d replicas, service links %v, %d s to stop", w.Ordinals.Start, w.Replicas, spec.Links, spec.Grace)
	}
	if _, ok := objects["Service/"+w.ServiceName]; !ok {
		t.Errorf("there is no service %s", w.ServiceName)
	}
	seen := map[string]bool{}
	for pod := 1; pod <= w.Replicas; pod++ {
		s := startOf(t, objects, pod)
		s.sound(t, fmt.Sprintf("pod %d", pod))
		for _, key := range []string{"MINK_NODE_ID", "MINK_ADVERTISE", "MINK_KAFKA_ADVERTISE"} {
			if seen[key+s.env[key]] {
				t.Errorf("pod %d: %s %s is another's too", pod, key, s.env[key])
			}
			seen[key+s.env[key]] = true
		}
		if want := fmt.Sprintf("mink-%d.%s.streams.svc.cluster.local:9123", pod, w.ServiceName); s.env["MINK_ADVERTISE"] != want {
			t.Errorf("pod %d advertises %s, want %s", pod, s.env["MINK_ADVERTISE"], want)
		}
		for _, p := range spec.Containers[0].Ports {
			key := map[string]string{"flight": "MINK_LISTEN", "kafka": "MINK_KAFKA_LISTEN", "http": "MINK_HTTP_LISTEN"}[p.Name]
			if !strings.HasSuffix(s.env[key], fmt.Sprintf(":%d", p.ContainerPort)) {
				t.Errorf("port %s is %d, %s is %s", p.Name, p.ContainerPort, key, s.env[key])
			}
		}
	}
	volumes := map[string]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range w.Claims {
		volumes[v.Metadata.Name] = true
	}
	for _, m := range spec.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("volume %s is mounted and not there", m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("volumes %v are not mounted", volumes)
	}
}
