package model

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// newDiffJob is a job with most kinds of blocks, changed by edit.
func newDiffJob(edit func(*api.Job)) *api.Job {
	task := &api.Task{
		Name: "main", Driver: "raw_exec", Env: map[string]string{"A": "1", "EMPTY": ""},
		Config:      map[string]any{"command": "/bin/sleep", "args": []any{"10", "x"}, "labels": []any{map[string]any{"a": 1.0}}},
		Constraints: []*api.Constraint{{LTarget: "${attr.kernel.name}", RTarget: "linux", Operand: "="}},
		LogConfig:   &api.LogConfig{MaxFiles: new(3)},
		Templates:   []*api.Template{{EmbeddedTmpl: new("one"), DestPath: new("local/f")}},
	}
	job := &api.Job{
		ID: new("web"), Type: new("service"), Datacenters: []string{"dc1"}, Meta: map[string]string{"a": "1"},
		TaskGroups: []*api.TaskGroup{{
			Name: new("app"), Count: new(2), Tasks: []*api.Task{task},
			Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}},
			Services: []*api.Service{{
				Name: "web", Provider: "nomad", PortLabel: "http", Tags: []string{"a"},
				Checks: []api.ServiceCheck{{Name: "alive", Type: "http", Path: "/", Interval: time.Second, Timeout: time.Second}},
			}},
		}},
	}
	if edit != nil {
		edit(job)
	}
	Canonicalize(job)
	return job
}

func firstGroup(j *api.Job) *api.TaskGroup { return j.TaskGroups[0] }
func firstTask(j *api.Job) *api.Task       { return j.TaskGroups[0].Tasks[0] }

// formatDiff formats a diff as one line per entry, without unchanged context.
func formatDiff(d *api.JobDiff) string {
	var b strings.Builder
	line := func(depth int, kind, text string, notes ...string) {
		fmt.Fprintf(&b, "%s%s %s", strings.Repeat("  ", depth), kind, text)
		if len(notes) > 0 {
			fmt.Fprintf(&b, " (%s)", strings.Join(notes, ", "))
		}
		b.WriteByte('\n')
	}
	fields := func(depth int, all []*api.FieldDiff) {
		for _, f := range all {
			if f.Type != DiffNone {
				line(depth, f.Type, fmt.Sprintf("%s %q %q", f.Name, f.Old, f.New), f.Annotations...)
			}
		}
	}
	var writeObjects func(depth int, all []*api.ObjectDiff)
	writeObjects = func(depth int, all []*api.ObjectDiff) {
		for _, o := range all {
			line(depth, o.Type, "{"+o.Name+"}")
			fields(depth+1, o.Fields)
			writeObjects(depth+1, o.Objects)
		}
	}
	line(0, d.Type, "job "+d.ID)
	fields(1, d.Fields)
	writeObjects(1, d.Objects)
	for _, g := range d.TaskGroups {
		line(1, g.Type, "group "+g.Name)
		fields(2, g.Fields)
		writeObjects(2, g.Objects)
		for _, t := range g.Tasks {
			line(2, t.Type, "task "+t.Name, t.Annotations...)
			fields(3, t.Fields)
			writeObjects(3, t.Objects)
		}
	}
	return b.String()
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*api.Job)
		want string
	}{
		{"nothing", nil, `
None job web
  None group app
    None task main`},
		{"what the agent writes is left out", func(j *api.Job) {
			j.Version, j.Stable, j.Status, j.ModifyIndex, j.SubmitTime = new(uint64(7)), new(true), new("dead"), new(uint64(9)), new(int64(1))
			j.VersionTag = &api.JobVersionTag{Name: "good"}
		}, `
None job web
  None group app
    None task main`},
		{"a job is stopped", func(j *api.Job) { j.Stop = new(true) }, `
Edited job web
  Edited Stop "false" "true"
  None group app
    None task main`},
		{"metadata and a list of the job", func(j *api.Job) { j.Meta["a"] = "2"; j.Datacenters = []string{"dc1", "dc2"} }, `
Edited job web
  Edited Meta[a] "1" "2"
  Edited {Datacenters}
    Added Datacenters "" "dc2"
  None group app
    None task main`},
		{"the count grows", func(j *api.Job) { firstGroup(j).Count = new(10) }, `
Edited job web
  Edited group app
    Edited Count "2" "10" (forces create)
    None task main`},
		{"the count shrinks", func(j *api.Job) { firstGroup(j).Count = new(1) }, `
Edited job web
  Edited group app
    Edited Count "2" "1" (forces destroy)
    None task main`},
		{"a task can take the change", func(j *api.Job) { firstTask(j).KillTimeout = new(7 * time.Second); firstTask(j).Leader = true }, `
Edited job web
  Edited group app
    Edited task main (forces in-place update)
      Edited KillTimeout "5000000000" "7000000000"
      Edited Leader "false" "true"`},
		{"environment, with and without text", func(j *api.Job) { firstTask(j).Env = map[string]string{"B": "", "A": "2"} }, `
Edited job web
  Edited group app
    Edited task main (forces create/destroy update)
      Edited Env[A] "1" "2"
      Added Env[B] "" ""
      Deleted Env[EMPTY] "" ""`},
		{"the configuration of the driver", func(j *api.Job) {
			firstTask(j).Config = map[string]any{"command": "/bin/sleep", "args": []any{"10"}, "labels": []any{map[string]any{"a": 2}}}
		}, `
Edited job web
  Edited group app
    Edited task main (forces create/destroy update)
      Edited {Config}
        Deleted args[1] "x" ""
        Edited labels[0][a] "1" "2"`},
		{"one of a set is another one", func(j *api.Job) { firstTask(j).Constraints[0].RTarget = "darwin" }, `
Edited job web
  Edited group app
    Edited task main (forces in-place update)
      Added {Constraint}
        Added LTarget "" "${attr.kernel.name}"
        Added Operand "" "="
        Added RTarget "" "darwin"
      Deleted {Constraint}
        Deleted LTarget "${attr.kernel.name}" ""
        Deleted Operand "=" ""
        Deleted RTarget "linux" ""`},
		{"a service is found again by its name", func(j *api.Job) {
			s := firstGroup(j).Services[0]
			s.Tags, s.Checks[0].Path = []string{"b"}, "/health"
		}, `
Edited job web
  Edited group app
    Edited {Service}
      Edited {Check}
        Edited Path "/" "/health"
      Edited {Tags}
        Added Tags "" "b"
        Deleted Tags "a" ""
    None task main`},
		{"ports", func(j *api.Job) { firstGroup(j).Networks[0].ReservedPorts = []api.Port{{Label: "x", Value: 80}} }, `
Edited job web
  Edited group app
    Added {Network}
      Added MBits "" "0"
      Added {Dynamic Port}
        Added HostNetwork "" "default"
        Added IgnoreCollision "" "false"
        Added Label "" "http"
        Added To "" "0"
        Added Value "" "0"
      Added {Static Port}
        Added HostNetwork "" "default"
        Added IgnoreCollision "" "false"
        Added Label "" "x"
        Added To "" "0"
        Added Value "" "80"
    Deleted {Network}
      Deleted MBits "0" ""
      Deleted {Dynamic Port}
        Deleted HostNetwork "default" ""
        Deleted IgnoreCollision "false" ""
        Deleted Label "http" ""
        Deleted To "0" ""
        Deleted Value "0" ""
    None task main`},
		{"a device", func(j *api.Job) {
			firstTask(j).Resources = &api.Resources{Devices: []*api.RequestedDevice{{
				Name: "acme/gpu", Constraints: []*api.Constraint{{LTarget: "${device.attr.memory}", RTarget: "2 GiB", Operand: ">="}},
				Affinities: []*api.Affinity{{LTarget: "${device.model}", RTarget: "x", Operand: "=", Weight: new(int8(50))}},
			}}}
		}, `
Edited job web
  Edited group app
    Edited task main (forces create/destroy update)
      Edited {Resources}
        Added {Device}
          Added Count "" "1"
          Added Name "" "acme/gpu"
          Added {Affinity}
            Added LTarget "" "${device.model}"
            Added Operand "" "="
            Added RTarget "" "x"
            Added Weight "" "50"
          Added {Constraint}
            Added LTarget "" "${device.attr.memory}"
            Added Operand "" ">="
            Added RTarget "" "2 GiB"`},
		{"a template", func(j *api.Job) { firstTask(j).Templates[0].EmbeddedTmpl = new("two") }, `
Edited job web
  Edited group app
    Edited task main (forces create/destroy update)
      Edited {Template}
        Edited EmbeddedTmpl "one" "two"`},
		{"a duration that was not set", func(j *api.Job) { firstGroup(j).ShutdownDelay = new(2 * time.Second) }, `
Edited job web
  Edited group app
    Added ShutdownDelay "" "2000000000"
    None task main`},
		{"a block that Nomad does not show", func(j *api.Job) {
			firstTask(j).Lifecycle = &api.TaskLifecycle{Hook: "prestart"}
			j.Spreads = []*api.Spread{{Attribute: "${node.datacenter}", Weight: new(int8(50))}}
			firstGroup(j).MaxRunDuration = new(time.Minute)
		}, `
Edited job web
  Added {Spread}
    Added Attribute "" "${node.datacenter}"
    Added Weight "" "50"
  Edited group app
    Added MaxRunDuration "" "60000000000"
    Edited task main (forces create/destroy update)
      Added {Lifecycle}
        Added Hook "" "prestart"
        Added Sidecar "" "false"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, new := newDiffJob(nil), newDiffJob(c.edit)
			diff := Diff(old, new)
			AnnotateDiff(diff, old, new, nil)
			if got := formatDiff(diff); got != c.want[1:]+"\n" {
				t.Errorf("got\n%s\nwant%s", got, c.want)
			}
			// In the reverse diff, added entries are deleted.
			back := formatDiff(Diff(new, old))
			if added, deleted := strings.Count(formatDiff(diff), "Added "), strings.Count(back, "Deleted "); added != deleted {
				t.Errorf("%d added, the other way %d deleted\n%s", added, deleted, back)
			}
		})
	}
}

func TestDiffShowsUnchangedFieldsOfAChangedBlock(t *testing.T) {
	diff := Diff(newDiffJob(nil), newDiffJob(func(j *api.Job) { firstTask(j).LogConfig.MaxFiles = new(4) }))
	log := diff.TaskGroups[0].Tasks[0].Objects[0]
	if log.Name != "LogConfig" {
		t.Fatalf("object %q", log.Name)
	}
	got := fmt.Sprint(*log.Fields[0], *log.Fields[1], *log.Fields[2])
	if want := "{None Disabled false false []} {None MaxFileSizeMB 10 10 []} {Edited MaxFiles 3 4 []}"; got != want {
		t.Errorf("fields %s, want %s", got, want)
	}
}

func TestDiffOfAWholeJob(t *testing.T) {
	job := newDiffJob(nil)
	updates := map[string]*api.DesiredUpdates{"app": {Place: 2, Ignore: 0}}
	diff := Diff(nil, job)
	AnnotateDiff(diff, nil, job, updates)
	if g := diff.TaskGroups[0]; diff.Type != DiffAdded || diff.ID != "web" || g.Type != DiffAdded || len(g.Updates) != 1 || g.Updates["create"] != 2 ||
		fmt.Sprint(g.Tasks[0].Annotations) != "[forces create]" {
		t.Errorf("%s %v", formatDiff(diff), g.Updates)
	}
	if diff := Diff(job, nil); diff.Type != DiffDeleted || diff.TaskGroups[0].Tasks[0].Type != DiffDeleted {
		t.Error(formatDiff(diff))
	}
	// A removed group includes its tasks.
	other := newDiffJob(func(j *api.Job) { firstGroup(j).Name = new("new") })
	diff = Diff(job, other)
	AnnotateDiff(diff, job, other, nil)
	for i, want := range []string{"[forces destroy]", "[forces create]"} {
		if got := fmt.Sprint(diff.TaskGroups[i].Tasks[0].Annotations); got != want {
			t.Errorf("group %s: %s", diff.TaskGroups[i].Name, got)
		}
	}
}

// The diff of two jobs shows a change in any field of package api's types.
func TestDiffSeesEachAttribute(t *testing.T) {
	seen := make(map[reflect.Type]bool)
	var checkType func(reflect.Type)
	checkType = func(in reflect.Type) {
		switch in.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			checkType(in.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[in] {
			return
		}
		seen[in] = true
		plain := newDiffBlockOfStruct("", "", reflect.New(in).Elem())
		for i := range in.NumField() {
			f := in.Field(i)
			checkType(f.Type)
			if f.Tag.Get("json") == "-" || slices.Contains(fieldsHiddenInDiff[in], f.Name) {
				continue
			}
			changed := reflect.New(in).Elem()
			set(changed.Field(i))
			if newDiffBlockOfStruct("", "", changed).fingerprint == plain.fingerprint {
				t.Errorf("%s.%s is not seen", in, f.Name)
			}
		}
	}
	checkType(reflect.TypeFor[api.Job]())
	if len(seen) < 40 {
		t.Errorf("only %d types", len(seen))
	}
}

// set sets a value other than the default.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		set(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		set(value)
		v.SetMapIndex(reflect.ValueOf("k"), value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Interface:
		v.Set(reflect.ValueOf("text"))
	case reflect.Struct:
	default:
		v.Set(reflect.ValueOf(7).Convert(v.Type()))
	}
}
