package pages

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// readPastEvents returns the number of bytes of the event stream up to the change with the given index, or up to a later one.
func readPastEvents(t *testing.T, address, query string, lastIndex uint64) (bytes int) {
	t.Helper()
	for range 20 { // the agent ends a stream that is read so slowly that changes are missed
		r, err := http.Get(address + "/v1/event/stream?namespace=*&" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		bytes = 0
		lines := bufio.NewScanner(r.Body)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			bytes += len(lines.Bytes()) + 1
			index := uint64(0)
			_, _ = fmt.Sscanf(lines.Text()[strings.LastIndex(lines.Text(), ":")+1:], "%d}", &index) // a heartbeat has no index
			if index >= lastIndex {
				return bytes
			}
		}
	}
	t.Fatalf("the stream of past events does not reach the index %d", lastIndex)
	return 0
}

// TestUIChanges shows the changes of jobs in words, one row for each, also after changes of many allocations.
func TestUIChanges(t *testing.T) {
	slowtest.Skip(t, "runs many allocations, and shows pages in a browser")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false, "client {\n  gc_max_allocs = 1000\n}\n") // the removal of each directory is a change, of which the page loads the last 200
	u := &uiJobsTest{TestAgent: s, t: t, browser: systemtest.OpenSharedBrowser(t)}

	many := newUIJob("many", 300)
	many.TaskGroups[0].Update = nil
	u.register(many)
	s.WaitUntil("allocations were placed or wait for room", func() (string, bool) {
		allocs, _, err := s.Jobs().Allocations("many", false, nil)
		return fmt.Sprint(len(allocs), err), len(allocs) >= 100
	})
	if _, _, err := s.Jobs().Deregister("many", false, nil); err != nil {
		t.Fatal(err)
	}
	s.WaitUntil("all allocations have ended", func() (string, bool) {
		allocs, _, err := s.Jobs().Allocations("many", false, nil)
		running := 0
		for _, a := range allocs {
			if a.ClientStatus == api.AllocClientStatusRunning || a.ClientStatus == api.AllocClientStatusPending {
				running++
			}
		}
		return fmt.Sprint(running, err), running == 0
	})
	marker := u.register(newUIJob("marker", 1))
	u.waitRunning(*marker.ID, 1)
	variable, _, err := s.Variables().Create(&api.Variable{Path: "last", Items: api.VariableItems{"a": "b"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := readPastEvents(t, s.Address, "topic=*", variable.ModifyIndex)
	loaded := readPastEvents(t, s.Address, "topic=*&latest=200&compact=true", variable.ModifyIndex)
	t.Logf("past events have %d bytes, of which the page loads %d", whole, loaded)
	if loaded > 400_000 || loaded > whole/2 {
		t.Errorf("the page loads %d of %d bytes when it is opened", loaded, whole)
	}

	p := u.open("/ui/events")
	p.WaitText("td.what", "Variable last was changed")
	const row = `[...document.querySelectorAll("tbody tr")].filter((e) => e.textContent.includes(%q))`
	u.register(newUIJob("trio", 3))
	u.waitRunning("trio", 3)
	p.WaitText("td.what", "Job trio was submitted as version 0")
	p.WaitFor(fmt.Sprintf(row+`.some((e) => /^\d/.test(e.querySelector("td.time").textContent))`, "Job trio was submitted"))
	if n := systemtest.Eval[int](p, fmt.Sprintf(row+`.length`, "Job trio was submitted")); n != 1 {
		t.Errorf("%d rows for one change", n)
	}
	if shown := systemtest.Eval[bool](p, `[...document.querySelectorAll("td pre")].length > 0`); shown {
		t.Error("details are not folded")
	}
	systemtest.Eval[any](p, fmt.Sprintf(row+`[0].querySelector("summary").click()`, "Job trio was submitted"))
	p.WaitText("td details li", "Job trio JobRegistered in default")
	systemtest.Eval[any](p, `document.querySelector("td details li summary").click()`)
	p.WaitText("td pre", `"SubmitTime"`)

	failing := newUIJob("broken", 1)
	failing.TaskGroups[0].Update = nil
	failing.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	failing.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	*failing.TaskGroups[0].Tasks[0] = *systemtest.NewRawExecShellTask("main", "echo '<b>' >&2; exit 3")
	u.register(failing)
	p.WaitFor(fmt.Sprintf(row+`.some((e) => e.querySelector("td.why").textContent.startsWith("Task main: "))`, "Allocation broken.web[0] has failed"))
	if _, _, err := s.Jobs().Deregister("trio", false, nil); err != nil {
		t.Fatal(err)
	}
	p.WaitText("td.what", "Job trio was stopped")
	huge := newUIJob("huge", 1)
	huge.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(100_000_000)
	u.register(huge)
	p.WaitFor(fmt.Sprintf(row+`.some((e) => e.querySelector("td.why").textContent.startsWith("There is no place for group web. Not enough is left on this node: memory"))`, "Job huge was submitted"))
	p.ScreenshotIfEnabled("changes")
	p.CheckFitsPhone("changes-phone")
}
