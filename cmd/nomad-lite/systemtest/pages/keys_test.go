package pages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// maxKeyPresses is the number of key presses after which a test no longer expects an element to get the focus.
const maxKeyPresses = 40

const focusedText = `document.activeElement.textContent`

// pressUntilFocused presses a key until the element with the focus has a text. Rows can move meanwhile, because the health of
// jobs changes: after the last row, the key g selects the first one.
func pressUntilFocused(p *systemtest.WebPage, key, text string) {
	p.T.Helper()
	p.WaitFor(fmt.Sprintf(`[...document.querySelectorAll("main :is(a, button)")].some((e) => e.checkVisibility() && e.textContent.startsWith(%q))`, text))
	var passed []string
	for range maxKeyPresses {
		p.PressKeys(key)
		focused := systemtest.Eval[string](p, focusedText)
		if strings.HasPrefix(focused, text) {
			return
		}
		if key == "j" && len(passed) > 0 && passed[len(passed)-1] == focused {
			p.PressKeys("g")
		}
		passed = append(passed, focused)
	}
	p.T.Fatalf("%q does not get the focus with %q, which passes %q:\n%s", text, key, passed, p.Text())
}

// TestUIWalksByKeyboard makes the walks of docs/how-to/ui-walks.md without a mouse.
func TestUIWalksByKeyboard(t *testing.T) {
	slowtest.Skip(t, "opens pages that other tests check")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	jobs := startWalkJobs(t, s)
	p := b.OpenTab(s.Address, "/ui/")
	openAllocation := func(job, id string) {
		t.Helper()
		p.WaitText("td", job)
		pressUntilFocused(p, "j", job)
		p.PressKeys("\r")
		p.WaitText("h1", job)
		p.WaitText("td", id)
		pressUntilFocused(p, "j", id)
		p.PressKeys("\r")
		p.WaitText("h1", id)
	}

	openAllocation("shop", jobs.shop.ID[:8])
	p.WaitText("nav a", "Time line")
	p.PressKeys("t")
	p.WaitText(".situation li", "web pending: waits for task \"migrate\" to end for ")
	p.WaitText(".span-output", "waiting for the database at 10.0.0.5:5432")

	p.PressKeys("q")
	openAllocation("report", jobs.report.ID[:8])
	p.PressKeys("t")
	p.WaitText(".problem", "main: slowest step: prestart hook script (")
	pressUntilFocused(p, "\t", "main: slowest step")
	p.PressKeys("\r")
	p.WaitText(".span-details dd", "prestart")

	p.PressKeys("q")
	p.WaitText("td", "api")
	pressUntilFocused(p, "j", "api")
	p.PressKeys("\r")
	p.WaitText("h1", "api")
	p.PressKeys("3")
	p.WaitText(".diff", `Env[LOG_LEVEL]: "info" → "debug"`)

	p.PressKeys("q")
	openAllocation("import", jobs.imported.ID[:8])
	p.WaitText("td", "failed (exit status 3)")
	pressUntilFocused(p, "j", "main")
	p.PressKeys("\r")
	p.WaitText("pre", "line 4711: no such customer: 0815")
	p.PressKeys("l")
	p.WaitFor(`location.pathname.endsWith("/main/logs")`)
}

// TestUIKeys uses the keys that the walks do not need.
func TestUIKeys(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	const count = 200 // more rows than a table draws at once
	for i := range count {
		job := newUIJob(fmt.Sprintf("row-%03d", i), 0)
		if _, _, err := s.Jobs().Register(job, nil); err != nil {
			t.Fatal(err)
		}
	}
	p := b.OpenTab(s.Address, "/ui/jobs")
	p.WaitText("td", "row-000")
	p.WaitText("[role=status]", fmt.Sprint(count, " jobs"))
	focused := func(text string) {
		t.Helper()
		p.WaitFor(fmt.Sprintf("%s === %q", focusedText, text))
		if !systemtest.Eval[bool](p, `(() => { const r = document.activeElement.getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight })()`) {
			t.Errorf("%s is not on the screen", text)
		}
	}
	p.PressKeys("k") // no row is selected: the first one on the screen
	focused("row-000")
	p.PressKeys("jjj")
	focused("row-003")
	p.PressKeys("k")
	focused("row-002")
	p.PressKeys("G")
	focused("row-199")
	p.PressKeys("j")
	focused("row-199")
	p.PressKeys("k")
	focused("row-198")
	p.PressKeys("g")
	focused("row-000")
	p.PressKeys("k")
	focused("row-000")

	p.PressKeys("f")
	p.WaitFor(`document.activeElement.type === "search"`)
	p.EnterText("main input[type=search]", "row-1jk?q") // without the text of the key f, which the driver of the browser sends although the page prevents it
	if got := systemtest.Eval[string](p, `document.querySelector("main input[type=search]").value`); got != "row-1jk?q" {
		t.Errorf("the filter has got %q", got)
	}
	p.EnterText("main input[type=search]", "row-150")
	p.WaitFor(shownRows + ` === "default/row-150"`)
	p.PressKeys("\t")
	systemtest.Eval[chromedp.Void](p, `document.activeElement.blur()`)
	p.PressKeys("j")
	focused("row-150")

	p.OpenPath("/ui/variables/new")
	p.EnterText("#variable-path", "kept")
	systemtest.Eval[chromedp.Void](p, `[...document.querySelectorAll("main button")].find((e) => e.textContent === "Save").focus()`)
	p.PressKeys("q/1")
	if got := systemtest.Eval[string](p, `location.pathname + " " + document.querySelector("#variable-path").value + document.querySelectorAll("dialog").length`); got != "/ui/variables/new kept0" {
		t.Errorf("after keys in a form: %s", got)
	}
	p.OpenPath("/ui/jobs?text=row-150")
	p.WaitText("td", "row-150")

	p.PressKeys("?")
	p.WaitText("dialog[open] h2", "Keys")
	for _, text := range []string{"j k", "g G", "search", "time line", "Ctrl with Enter"} {
		p.WaitText("dialog[open]", text)
	}
	p.ScreenshotIfEnabled("keys")
	p.PressKeys("j") // the dialog keeps the focus
	if !systemtest.Eval[bool](p, `document.activeElement.closest("dialog") !== null`) {
		t.Error("a key of the page works while the help is open")
	}
	p.PressKeys("?")
	p.WaitFor(`!document.querySelector("dialog")`)
	p.SetViewportSize(systemtest.PhoneWidth, systemtest.PhoneHeight)
	p.Click("Keys")
	p.WaitText("dialog[open] h2", "Keys")
	p.CheckFitsPhone("keys-phone")
	p.Click("Close")

	p.Click("Keys")
	p.RunSteps("switch off the keys", chromedp.Click(chromedp.CSS("dialog input")))
	p.PressKeys(kb.Escape)
	p.WaitFor(`!document.querySelector("dialog")`)
	p.OpenPath("/ui/jobs?text=row-15")
	p.WaitText("td", "row-150")
	p.PressKeys("j")
	p.PressKeys("/")
	if got := systemtest.Eval[string](p, `document.activeElement.localName + document.querySelectorAll("dialog").length`); got != "body0" {
		t.Errorf("keys that are switched off work: %s", got)
	}
	p.Click("Keys")
	p.RunSteps("switch on the keys", chromedp.Click(chromedp.CSS("dialog input")))
	p.PressKeys(kb.Escape)
	p.WaitFor(`!document.querySelector("dialog")`)
	p.PressKeys("g")
	focused("row-150")
}
