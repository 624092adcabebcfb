package pages

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestUITimelineOpensOnProblem checks that a time line shows what a user looks for without a click.
func TestUITimelineOpensOnProblem(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)

	t.Run("crash loop", func(t *testing.T) {
		group := api.NewTaskGroup("g", 1)
		group.RestartPolicy = &api.RestartPolicy{Attempts: new(2), Delay: new(time.Second), Interval: new(time.Hour), Mode: new("fail")}
		group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
		group.AddTask(systemtest.NewRawExecShellTask("main", "echo opening the database; echo no such file >&2; exit 3"))
		alloc := s.RunGroupUntilStatus("loop", "batch", "failed", group)
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/jobs/loop@default")
		p.Click("Output around the exit of task main")
		p.WaitFor(`location.pathname === "/ui/allocations/` + alloc.ID + `/timeline" && location.hash === "#exit=main"`)
		p.WaitText(".problem", "main: exit code 3, 3 times in a row")
		p.WaitText(".span-details h2", "exit 3")
		p.WaitText(".span-output .exit", "exit 3")
		p.WaitText(".span-output .during.stderr", "no such file")
		p.WaitFor(`(() => { const box = document.querySelector(".span-output .exit").getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight; })()`)
		p.ScreenshotIfEnabled("timeline-crash-loop")
		// The runs are one row, each with its exit code.
		p.WaitFor(`(() => { const runs = [...document.querySelectorAll("svg.timeline .kind-run")];
			return runs.length === 3 && new Set(runs.map((e) => e.querySelector("rect").getAttribute("y"))).size === 1; })()`)
		// The newest span is the first.
		p.WaitFor(`(() => { const starts = [...document.querySelectorAll("[aria-label=Spans] tbody tr")].map((tr) => tr.children[0].textContent);
			return starts.length > 5 && starts.every((start, i) => i === 0 || start <= starts[i - 1]) && starts[0] > starts.at(-1); })()`)
		checkCommandPrintsSentences(t, s, p, alloc.ID)
	})

	t.Run("slow hook", func(t *testing.T) {
		alloc := s.RunJobUntilStatus("slow", "service", "running",
			systemtest.NewRawExecShellTask("init", "sleep 4", systemtest.AsPrestartTask),
			systemtest.NewRawExecShellTask("main", "echo ready; "+systemtest.SleepForeverScript, slowHook("sleep 2"))) // slower than all other steps on a busy machine
		s.WaitUntil("main runs", func() (string, bool) {
			state := s.ReadAlloc(alloc.ID).TaskStates["main"]
			return state.State, state.State == "running"
		})
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.WaitText(".problem", "main: slowest step: prestart hook script (")
		p.WaitText(".span-details h2", "script (prestart)")
		p.WaitFor(`document.querySelector(".span-details").checkVisibility()`)
		p.WaitFor(`/ waited [0-9.]+m?s for "init" \(run [0-9.]+s\)(; |\.)/.test(document.querySelector(".situation li[data-key=main]").textContent)`)
		p.WaitFor(`location.hash === ""`)
		// What the agent does for each task by itself is folded.
		if text := systemtest.Eval[string](p, `document.querySelector("main").textContent`); strings.Contains(text, "validate") {
			t.Error("the page shows internal hooks")
		}
		p.Click("Internals")
		p.WaitText("td", "validate (prestart)")
		p.WaitText("svg.timeline .lane-kind", "internals")
		p.Click("Internals")
		p.WaitFor(`!document.querySelector("main").textContent.includes("validate")`)
		checkCommandPrintsSentences(t, s, p, alloc.ID)

		// A span has an address.
		p.Click("raw_exec: StartTask")
		p.WaitText(".span-details h2", "raw_exec: StartTask")
		address := systemtest.Eval[string](p, `location.pathname + location.hash`)
		id := systemtest.Eval[string](p, `document.querySelector("svg.timeline .selected").dataset.id`)
		if want := "/ui/allocations/" + alloc.ID + "/timeline#span=" + id; address != want {
			t.Errorf("the address is %s, want %s", address, want)
		}
		other := b.OpenTab(s.Address, address)
		other.WaitText(".span-details h2", "raw_exec: StartTask")
		other.WaitFor(fmt.Sprintf(`document.querySelector("svg.timeline .selected").dataset.id === %q`, id))
		other.WaitFor(`(() => { const box = document.querySelector(".span-details h2").getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight; })()`)
	})

	t.Run("export", func(t *testing.T) {
		alloc := s.RunJobUntilStatus("export", "batch", "failed", systemtest.NewRawExecShellTask(hostileName, "exit 0", slowHook("echo '<b>' >&2; exit 4"), systemtest.WithoutRestart))
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.WaitText(".problem", hostileName+": prestart hook script: ")
		systemtest.Eval[chromedp.Void](p, `window.files = []; URL.createObjectURL = (blob) => { files.push(blob); return "blob:none"; };
			HTMLAnchorElement.prototype.click = function () { files.at(-1).fileName = this.download; }`)
		p.Click("Save image")
		p.WaitFor(`files.length === 1`)
		if name := systemtest.Eval[string](p, `files[0].fileName + " " + files[0].type`); name != "timeline-"+alloc.ID[:8]+".svg image/svg+xml" {
			t.Errorf("the image is %s", name)
		}
		checkImage(t, systemtest.Eval[string](p, `files[0].text()`), hostileName+": prestart hook script: ", "task "+hostileName, "✕")
		p.Click("Save trace")
		p.WaitFor(`files.length === 2 && files[1].fileName`)
		var trace struct {
			TraceEvents []struct {
				Name, Ph string
				Args     map[string]string
			}
		}
		if err := json.Unmarshal([]byte(systemtest.Eval[string](p, `files[1].text()`)), &trace); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, e := range trace.TraceEvents {
			found = found || e.Ph == "X" && e.Name == "script (prestart)" && e.Args["task"] == hostileName && strings.Contains(e.Args["error"], "exit code 4")
		}
		if !found {
			t.Errorf("the trace does not have the failed hook: %+v", trace)
		}
	})
}

// checkImage checks that an SVG file has texts, and needs no style sheet.
func checkImage(t *testing.T, image string, want ...string) {
	t.Helper()
	var all strings.Builder
	root, filled := "", 0
	for d := xml.NewDecoder(strings.NewReader(image)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, image)
		}
		switch token := token.(type) {
		case xml.StartElement:
			root = cmp.Or(root, token.Name.Local)
			for _, a := range token.Attr {
				switch {
				case a.Name.Local == "class" || a.Name.Local == "style" || strings.HasPrefix(a.Name.Local, "on"):
					t.Errorf("the image has the attribute %s", a.Name.Local)
				case a.Name.Local == "fill" && strings.HasPrefix(a.Value, "rgb("):
					filled++
				}
			}
			if !slices.Contains([]string{"svg", "g", "rect", "text", "line", "path"}, token.Name.Local) {
				t.Errorf("the image has the element %s", token.Name.Local)
			}
		case xml.CharData:
			all.Write(token)
			all.WriteString("\n")
		}
	}
	if root != "svg" || filled < 5 {
		t.Errorf("the image has the root %s and %d elements with a colour", root, filled)
	}
	for _, text := range want {
		if !strings.Contains(all.String(), text) {
			t.Errorf("the image does not have the text %q: %s", text, &all)
		}
	}
}

// checkCommandPrintsSentences checks that `alloc status -timeline` prints the sentences of the page, except for durations that grow.
func checkCommandPrintsSentences(t *testing.T, s *systemtest.TestAgent, p *systemtest.WebPage, allocID string) {
	t.Helper()
	var out bytes.Buffer
	root.Execute([]string{"alloc", "status", "-address=" + s.Address, "-timeline", allocID}, &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	sentences := systemtest.Eval[[]string](p, `[...document.querySelectorAll(".problem a, .situation .span-link")].map((e) => e.textContent)`)
	if len(sentences) < 3 {
		t.Errorf("the page has only the sentences %q", sentences)
	}
	for _, sentence := range sentences {
		text, _, _ := strings.Cut(sentence, "up for ")
		if !strings.Contains(out.String(), text) {
			t.Errorf("the command does not print %q:\n%s", text, &out)
		}
	}
}
