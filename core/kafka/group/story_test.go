package group

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories give now into testdata")

// A story is a list of events of one group, each followed by "----" and what it
// answered, up to an empty line. Lines that start with # are for the reader.
//
//	config [delay=D] [max=N]
//	join LABEL [member=ID] [instance=ID] [client=ID] [type=T] [session=D] [rebalance=D]
//	     [v=N] [protocols=NAME:METADATA,...]
//	sync LABEL member=ID gen=N [instance=ID] [type=T] [protocol=P] [assign=ID:BYTES,...]
//	heartbeat member=ID gen=N [instance=ID]
//	leave [ID][/INSTANCE] ...
//	commit gen=N [member=ID] [instance=ID]
//	abandon LABEL        the client of the request is gone
//	wait D               time goes by; deadlines are kept
//	late D               time goes by; deadlines fire once, at its end
//	describe
//	close
//
// LABEL names the request; its answer begins with the time and the LABEL. Versions
// of join matter at 4 (an id is required) and 9 (the assignment may be skipped).
// Ids are the client's or the instance's and a number. The last line is the group
// after the event.
type story struct {
	t      *testing.T
	cfg    Config
	g      *Group
	now    time.Time
	ids    int
	tokens map[string]Token
	labels map[Token]string
}

var dawn = time.Unix(1_000_000, 0)

func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := tell(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got (run with -rewrite and read the change):\n%s", diff)
			}
		})
	}
}

func tell(t *testing.T, text string) string {
	st := newStory(t)
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if i+1 < len(lines) && lines[i+1] == "----" {
			for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
			}
		}
		fmt.Fprintf(&out, "----\n%s", st.run(strings.Fields(line)))
		if err := check(st.g); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if i+1 < len(lines) && lines[i+1] != "" {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

func newStory(t *testing.T) *story {
	st := &story{t: t, now: dawn, tokens: map[string]Token{}, labels: map[Token]string{}}
	st.cfg = Config{
		SessionMin: 6 * time.Second, SessionMax: 30 * time.Minute, NewMemberTimeout: 5 * time.Minute, MembersMax: 100,
		NewMemberID: func(prefix string) string { st.ids++; return prefix + "-" + strconv.Itoa(st.ids) },
		// Metadata that is the same up to a "+".
		SameInterest: func(_ string, before, now []byte) bool {
			a, _, _ := strings.Cut(string(before), "+")
			b, _, _ := strings.Cut(string(now), "+")
			return a == b
		},
	}
	st.g = New(&st.cfg)
	return st
}

func (st *story) run(words []string) string {
	var out strings.Builder
	a := args(words[1:])
	switch words[0] {
	case "config":
		st.cfg.InitialDelay = a.duration(st.t, "delay", st.cfg.InitialDelay)
		st.cfg.MembersMax = a.number(st.t, "max", st.cfg.MembersMax)
	case "join":
		st.replies(&out, st.g.Join(st.now, st.token(words[1]), joinOf(st.t, a)))
	case "sync":
		r := &SyncRequest{MemberID: a.get("member"), InstanceID: a.get("instance"), Generation: int32(a.number(st.t, "gen", 0)),
			ProtocolType: a.get("type"), Protocol: a.get("protocol"), Assignments: map[string][]byte{}}
		for _, p := range pairs(a.get("assign")) {
			r.Assignments[p.Name] = p.Metadata
		}
		st.replies(&out, st.g.Sync(st.now, st.token(words[1]), r))
	case "heartbeat":
		fmt.Fprintln(&out, name(st.g.Heartbeat(st.now, a.get("member"), a.get("instance"), int32(a.number(st.t, "gen", 0)))))
	case "leave":
		var who []Leaving
		for _, w := range words[1:] {
			id, instance, _ := strings.Cut(w, "/")
			who = append(who, Leaving{id, instance})
		}
		errs, replies := st.g.Leave(st.now, who)
		for i, e := range errs {
			fmt.Fprintf(&out, "%s: %s\n", words[1+i], name(e))
		}
		st.replies(&out, replies)
	case "commit":
		fmt.Fprintln(&out, name(st.g.CheckCommit(st.now, int32(a.number(st.t, "gen", -1)), a.get("member"), a.get("instance"))))
	case "abandon":
		st.replies(&out, st.g.Abandon(st.now, st.tokens[words[1]]))
	case "wait", "late":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			st.t.Fatal(err)
		}
		st.wait(&out, st.now.Add(d), words[0] == "late")
	case "close":
		st.replies(&out, st.g.Close(NotCoordinator))
	case "describe":
		describe(&out, st.g.Describe())
	default:
		st.t.Fatalf("no event %q", words[0])
	}
	st.summary(&out)
	return out.String()
}

func (st *story) wait(out *strings.Builder, end time.Time, late bool) {
	for n := 0; ; n++ {
		due, ok := st.g.Deadline()
		if !ok || due.After(end) {
			break
		}
		if n > 1000 {
			st.t.Fatalf("the deadline stays at %v", due.Sub(dawn))
		}
		if st.now = due; late {
			st.now = end
		}
		st.replies(out, st.g.Tick(st.now))
		if late {
			break
		}
	}
	st.now = end
}

func (st *story) token(label string) Token {
	if _, used := st.tokens[label]; used {
		st.t.Fatalf("label %s is used twice", label)
	}
	t := Token(len(st.tokens) + 1)
	st.tokens[label], st.labels[t] = t, label
	return t
}

func (st *story) replies(out *strings.Builder, replies []Reply) {
	for _, r := range replies {
		fmt.Fprintf(out, "%v %s: ", st.now.Sub(dawn), st.labels[r.Token])
		switch {
		case r.Join != nil && r.Join.Err != None:
			fmt.Fprintf(out, "%s member=%s\n", name(r.Join.Err), r.Join.MemberID)
		case r.Join != nil:
			j := r.Join
			fmt.Fprintf(out, "ok gen=%d type=%s protocol=%s leader=%s member=%s", j.Generation, j.ProtocolType, j.Protocol, j.Leader, j.MemberID)
			if j.SkipAssignment {
				fmt.Fprint(out, " skip")
			}
			for _, m := range j.Members {
				fmt.Fprintf(out, " [%s %s]", who(m.MemberID, m.InstanceID), m.Metadata)
			}
			fmt.Fprintln(out)
		case r.Sync.Err != None:
			fmt.Fprintln(out, name(r.Sync.Err))
		default:
			fmt.Fprintf(out, "ok type=%s protocol=%s assignment=%q\n", r.Sync.ProtocolType, r.Sync.Protocol, r.Sync.Assignment)
		}
	}
}

// summary is the group in a line: who waits is marked j or s.
func (st *story) summary(out *strings.Builder) {
	fmt.Fprintf(out, "%v %s gen=%d", st.now.Sub(dawn), st.g.State(), st.g.Generation())
	for _, m := range st.g.members {
		fmt.Fprintf(out, " %s", who(m.id, m.instance))
		if m.id == st.g.leader {
			fmt.Fprint(out, "*")
		}
		if m.join != 0 {
			fmt.Fprint(out, ":j")
		}
		if m.sync != 0 {
			fmt.Fprint(out, ":s")
		}
	}
	for _, id := range slices.Sorted(keys(st.g.pending)) {
		fmt.Fprintf(out, " (%s)", id)
	}
	fmt.Fprintln(out)
}

func describe(out *strings.Builder, i Info) {
	fmt.Fprintf(out, "type=%s protocol=%s leader=%s\n", i.ProtocolType, i.Protocol, i.Leader)
	for _, m := range i.Members {
		fmt.Fprintf(out, "%s client=%s host=%s metadata=%q assignment=%q\n", who(m.MemberID, m.InstanceID), m.ClientID, m.ClientHost, m.Metadata, m.Assignment)
	}
}

func who(id, instance string) string {
	if instance != "" {
		return id + "/" + instance
	}
	return id
}

func name(e Error) string {
	return map[Error]string{None: "ok", NotCoordinator: "NOT_COORDINATOR", IllegalGeneration: "ILLEGAL_GENERATION",
		InconsistentProtocol: "INCONSISTENT_GROUP_PROTOCOL", UnknownMember: "UNKNOWN_MEMBER_ID", InvalidSessionTimeout: "INVALID_SESSION_TIMEOUT",
		RebalanceInProgress: "REBALANCE_IN_PROGRESS", MemberIDRequired: "MEMBER_ID_REQUIRED", MaxSizeReached: "GROUP_MAX_SIZE_REACHED",
		FencedInstance: "FENCED_INSTANCE_ID"}[e]
}

type args []string

func (a args) get(key string) string {
	for _, w := range a {
		if v, found := strings.CutPrefix(w, key+"="); found {
			return v
		}
	}
	return ""
}

func (a args) number(t *testing.T, key string, otherwise int) int {
	if a.get(key) == "" {
		return otherwise
	}
	n, err := strconv.Atoi(a.get(key))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (a args) duration(t *testing.T, key string, otherwise time.Duration) time.Duration {
	if a.get(key) == "" {
		return otherwise
	}
	d, err := time.ParseDuration(a.get(key))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (a args) or(key, otherwise string) string {
	if slices.ContainsFunc(a, func(w string) bool { return strings.HasPrefix(w, key+"=") }) {
		return a.get(key)
	}
	return otherwise
}

func joinOf(t *testing.T, a args) *JoinRequest {
	version := a.number(t, "v", 3)
	return &JoinRequest{
		MemberID: a.get("member"), InstanceID: a.get("instance"), ClientID: a.or("client", "c"), ClientHost: a.or("host", "/h"),
		ProtocolType: a.or("type", "consumer"), Protocols: pairs(a.or("protocols", "range:m")),
		Session: a.duration(t, "session", 10*time.Second), Rebalance: a.duration(t, "rebalance", time.Minute),
		RequireID: version >= 4, CanSkip: version >= 9,
	}
}

func pairs(text string) []Protocol {
	var all []Protocol
	for w := range strings.SplitSeq(text, ",") {
		if w != "" {
			n, b, _ := strings.Cut(w, ":")
			all = append(all, Protocol{n, []byte(b)})
		}
	}
	return all
}
