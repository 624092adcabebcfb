package conditions

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// factsByCase has facts that contain each kind of condition at least once.
func factsByCase() map[string]Facts {
	certificate := func(from, to time.Duration) []Certificate {
		return []Certificate{{"/etc/n/cert.pem", "/etc/n/key.pem", &x509.Certificate{NotBefore: noon.Add(from), NotAfter: noon.Add(to)}}}
	}
	const day = 24 * time.Hour
	return map[string]Facts{
		"all is well":                         {},
		"node not ready":                      {NodeNotReady: true},
		"no servers":                          {NoKnownServers: true},
		"disk full":                           {SpaceErr: errors.New("the disk of /var/lib/nomad-lite is full: no space left on device"), Disk: Use{63 << 20, 64 << 20, ""}},
		"disk full of files of others":        {SpaceErr: errors.New("full"), ForeignFiles: []string{"a", "backup.tar", "c", "d", "e"}},
		"no inodes":                           {InodesErr: errors.New("the disk of /var/lib/nomad-lite has 3 free inodes, too few for new files: no space left on device")},
		"state not written":                   {StateWriteErr: errors.New("write state.db: read-only file system")},
		"output lost":                         {OutputLossErr: errors.New("stdout of task \"web\" of allocation 1234: no space left on device")},
		"descriptors at 95 %":                 {Descriptors: Use{95, 100, ""}},
		"descriptors":                         {Descriptors: Use{96, 100, "they suffice for 16 tasks, and 16 run"}},
		"processes":                           {Processes: Use{960, 1000, "/sys/fs/cgroup/a/pids.max"}},
		"processes of a service":              {Processes: Use{960, 1000, "/sys/fs/cgroup/system.slice/nomad-lite.service/pids.max"}},
		"descriptors of a service":            {Descriptors: Use{96, 100, "96 of 100 are open"}},
		"unknown tasks of a service":          {UnknownAllocs: []UnknownAlloc{{ID: "a", JobID: "web"}}},
		"keeper of a service replaced":        {KeeperReplacedAt: noon},
		"output lost on a full disk":          {SpaceErr: errors.New("full"), StateWriteErr: errors.New("no space left on device"), OutputLossErr: errors.New("stdout of task \"web\" of allocation 1234: no space left on device")},
		"memory":                              {Memory: Use{31 << 30, 32 << 30, ""}},
		"two plugins":                         {Plugins: []Plugin{{"a", "/p/a", errors.New("exit status 1"), noon.Add(-time.Minute)}, {"b c", "", errors.New("no such file"), time.Time{}}}},
		"driver":                              {Drivers: []Driver{{"docker", "cannot connect"}, {"x", ""}}},
		"damaged files":                       {DamageCount: 2, DamagedFiles: []string{"/d/state.db.damaged-1", "/d/state.db.damaged-2"}, DamagedAt: noon},
		"damaged records":                     {DamageCount: 2},
		"unknown tasks":                       {UnknownAllocs: []UnknownAlloc{{ID: "a", JobID: "web"}}},
		"many unknown tasks":                  {UnknownAllocs: []UnknownAlloc{{ID: "a"}, {ID: "b"}, {ID: "c", JobID: "web"}, {ID: "d"}, {ID: "e"}}},
		"unknown instance":                    {UnknownAllocs: []UnknownAlloc{{ID: "a", JobID: "web", IsInstance: true}}},
		"keeper replaced":                     {KeeperReplacedAt: noon.Add(-59 * time.Minute)},
		"keeper replaced long ago":            {KeeperReplacedAt: noon.Add(-time.Hour)},
		"clock set back":                      {ClockSteppedAt: noon.Add(30 * time.Minute)},
		"certificate expired":                 {Certificates: certificate(-90*day, -time.Second)},
		"certificate not valid yet":           {Certificates: certificate(time.Second, day)},
		"certificate near its end":            {Certificates: certificate(-69*day, 20*day)},
		"short certificate in its last third": {Certificates: certificate(-17*time.Hour, 7*time.Hour)},
		"scheduler paused":                    {EvaluationsPaused: true, JobsRejected: true},
		"short certificate":                   {Certificates: certificate(-15*time.Hour, 9*time.Hour)},
	}
}

// testdata/conditions.txt has the texts for all kinds of conditions. Each kind is found in some case.
func TestConditionsOfFacts(t *testing.T) {
	var text strings.Builder
	found := map[string]bool{}
	cases := factsByCase()
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range cases {
			if !yield(name) {
				return
			}
		}
	})
	for _, name := range names {
		f := cases[name]
		f.Now, f.DataDir, f.PID, f.AgentDir, f.AgentCommand = noon, "/var/lib/nomad-lite", 4711, "/root", []string{"nomad-lite", "agent", "-config", "/etc/nomad-lite/agent.hcl"}
		if strings.Contains(name, "service") {
			f.Unit = "nomad-lite.service"
		}
		fmt.Fprintf(&text, "# %s\n", name)
		for _, c := range Find(f) {
			found[c.Kind] = true
			fmt.Fprintf(&text, "%s %s %s (%s)\n  %s.\n  %s.\n    %s\n", c.Severity, c.Kind, c.Object, c.Part, c.Summary, c.Remedy, strings.Join(c.Commands, "\n    "))
		}
	}
	page, err := os.ReadFile("../../../docs/reference/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		if !found[k.Kind] {
			t.Errorf("no case has the condition %s", k.Kind)
		}
		if row := fmt.Sprintf("| `%s` | %s |", k.Kind, k.Severity); !strings.Contains(string(page), row) {
			t.Errorf("docs/reference/conditions.md has no row %q", row)
		}
	}
	golden.Check(t, "testdata/conditions.txt", text.String())
}

func TestErrorsAreBeforeWarnings(t *testing.T) {
	all := Kinds()
	if !slices.IsSortedFunc(all, func(a, b Condition) int { return strings.Compare(string(a.Severity), string(b.Severity)) }) {
		t.Errorf("%+v", all)
	}
}

// A condition keeps its start while it exists, and its begin and end are reported once, also if a reader looks in between.
func TestTrackerReportsBeginAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var facts atomic.Pointer[Facts]
		facts.Store(&Facts{})
		tracker := NewTracker(func() Facts {
			f := *facts.Load()
			f.Now = time.Now()
			return f
		})
		var log []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			tracker.Run(ctx, func(begun, ended []Condition) {
				for _, c := range begun {
					log = append(log, "begun "+c.Kind+c.Object)
				}
				for _, c := range ended {
					log = append(log, "ended "+c.Kind+c.Object)
				}
			})
		}()
		synctest.Wait()
		facts.Store(&Facts{SpaceErr: errors.New("full"), Drivers: []Driver{{"a", ""}}})
		time.Sleep(minLookInterval)
		begin := time.Now()
		if r := tracker.Report(); len(r.Conditions) != 2 || !r.LookedAt.Equal(begin) || !r.Conditions[0].Since.Equal(begin) {
			t.Errorf("%+v", r)
		}
		time.Sleep(3 * lookInterval)
		if r := tracker.Report(); len(r.Conditions) != 2 || !r.Conditions[0].Since.Equal(begin) {
			t.Errorf("%+v, want the start %v", r, begin)
		}
		facts.Store(&Facts{Drivers: []Driver{{"a", ""}, {"b", ""}}})
		tracker.LookNow()
		synctest.Wait()
		facts.Store(&Facts{})
		time.Sleep(lookInterval)
		synctest.Wait()
		cancel()
		<-done
		slices.Sort(log[len(log)-2:]) // two conditions have ended together
		want := []string{"begun DiskFull", "begun DriverUnhealthya", "begun DriverUnhealthyb", "ended DiskFull", "ended DriverUnhealthya", "ended DriverUnhealthyb"}
		if !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}
		if r := tracker.Report(); r.Conditions == nil || len(r.Conditions) > 0 {
			t.Errorf("%+v", r)
		}
	})
}

// Concurrent and frequent readers share one look.
func TestReadersShareOneLook(t *testing.T) {
	looks := 0
	tracker := NewTracker(func() Facts { looks++; return Facts{Now: time.Now()} })
	for range 100 {
		tracker.Report()
	}
	if looks != 1 {
		t.Errorf("%d looks", looks)
	}
}

func TestNearestProcessLimit(t *testing.T) {
	read := func(files map[string]string) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) {
			text, ok := files[name]
			if !ok {
				return nil, os.ErrNotExist
			}
			return []byte(text), nil
		}
	}
	machine := map[string]string{"/proc/loadavg": "0.20 0.18 0.12 1/80 11206\n", "/proc/sys/kernel/pid_max": "4194304\n", "/proc/sys/kernel/threads-max": "1000\n"}
	with := func(more map[string]string) map[string]string {
		all := map[string]string{}
		for _, files := range []map[string]string{machine, more} {
			for k, v := range files {
				all[k] = v
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  Use
	}{
		"nothing can be read": {nil, Use{}},
		"the machine":         {machine, Use{80, 1000, "/proc/sys/kernel/threads-max"}},
		"a cgroup of v2 above the own one": {with(map[string]string{
			"/proc/self/cgroup": "0::/a.slice/b.service\n", "/sys/fs/cgroup/a.slice/b.service/pids.max": "max\n", "/sys/fs/cgroup/a.slice/b.service/pids.current": "5\n",
			"/sys/fs/cgroup/a.slice/pids.max": "10\n", "/sys/fs/cgroup/a.slice/pids.current": "7\n",
		}), Use{7, 10, "/sys/fs/cgroup/a.slice/pids.max"}},
		"a cgroup of v1": {with(map[string]string{
			"/proc/self/cgroup": "3:cpu,cpuacct:/c\n9:pids:/a\n0::/x\n", "/sys/fs/cgroup/pids/a/pids.max": "10\n", "/sys/fs/cgroup/pids/a/pids.current": "9\n",
		}), Use{9, 10, "/sys/fs/cgroup/pids/a/pids.max"}},
	} {
		if got := nearestProcessLimit(read(c.files)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestOpenFilesCountsThisProcess(t *testing.T) {
	before := OpenFiles(os.Getpid())
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || before.Limit != limit.Cur {
		t.Errorf("%+v, %v, want the limit %d", before, err, limit.Cur)
	}
	for range 20 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if after := OpenFiles(os.Getpid()); after.Used < before.Used+20 || after.Used > before.Used+25 {
		t.Errorf("%d open files, before 20 more: %d", after.Used, before.Used)
	}
}
