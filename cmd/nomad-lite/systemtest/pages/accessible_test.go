package pages

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// accessibilityProblems is an expression: what people with poor eyes, a screen reader, or a thumb cannot use on the page. Texts need a contrast
// of 4.5 to what is behind them, 3 if they are large; inputs, buttons and links need names; and with a finger, targets that are not within a
// sentence need 24 pixels.
const accessibilityProblems = `(() => {
	const problems = [];
	const report = (e, text) => problems.push(text + ": " + e.outerHTML.slice(0, 160));
	const isShown = (e) => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && e.getClientRects().length > 0;

	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const colours = new Map();
	function parse(colour) { // red, green, blue and alpha, each up to 255
		if (!colours.has(colour)) {
			canvas.clearRect(0, 0, 1, 1);
			canvas.fillStyle = colour;
			canvas.fillRect(0, 0, 1, 1);
			colours.set(colour, [...canvas.getImageData(0, 0, 1, 1).data]);
		}
		return colours.get(colour);
	}
	const over = (top, below) => below.map((c, i) => i === 3 ? 255 : (top[i] * top[3] + c * (255 - top[3])) / 255);
	const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * (c[i] <= 10 ? c[i] / 255 / 12.92 : ((c[i] / 255 + 0.055) / 1.055) ** 2.4), 0);
	function background(e) {
		const own = parse(getComputedStyle(e).backgroundColor);
		if (own[3] === 255) return own;
		return over(own, e.parentElement ? background(e.parentElement) : [255, 255, 255, 255]);
	}
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	const checked = new Set();
	while (texts.nextNode()) {
		const e = texts.currentNode.parentElement;
		if (!texts.currentNode.data.trim() || checked.has(e) || !isShown(e) || e.closest("svg, .hidden-text, .terminal, :disabled, [aria-disabled], textarea, noscript")) continue;
		checked.add(e);
		const style = getComputedStyle(e), size = parseFloat(style.fontSize);
		const behind = background(e), [a, b] = [luminance(over(parse(style.color), behind)), luminance(behind)];
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < (size >= 24 || size >= 18.6 && style.fontWeight >= 700 ? 3 : 4.5)) report(e, "contrast " + contrast.toFixed(2));
	}

	for (const e of document.querySelectorAll("a, button, input, select, textarea, summary, [role=button], [role=slider], [role=region], svg[role=img]")) {
		if (!isShown(e)) continue;
		const label = e.getAttribute("aria-label") ?? document.getElementById(e.getAttribute("aria-labelledby"))?.textContent;
		const name = label || [...(e.labels ?? [])].map((l) => l.textContent).join("") || (e.matches("input, select, textarea") ? "" : e.textContent);
		if (!name.trim()) report(e, "no name");
		if (innerWidth > 640 || e.matches("[role=region], svg, [role=slider], .skip")) continue;
		// A link within a sentence has the height of its line.
		if (e.matches("a, button.plain") && e.closest("p, li, dd, pre, .reason, td, h1") && getComputedStyle(e).display === "inline" && e.parentElement.textContent.trim() !== e.textContent.trim()) continue;
		const boxes = [e, ...(e.labels ?? [])].map((target) => target.getBoundingClientRect());
		if (!boxes.some((box) => box.width >= 24 && box.height >= 24)) report(e, "target of " + boxes.map((box) => Math.round(box.width) + "×" + Math.round(box.height)).join(" and "));
	}
	for (const e of document.querySelectorAll("th")) if (!e.textContent.trim()) report(e, "no title");
	for (const e of document.querySelectorAll("[aria-labelledby], [aria-describedby], label[for]")) {
		for (const name of ["aria-labelledby", "aria-describedby", "for"]) {
			const id = e.getAttribute(name);
			if (id && !document.getElementById(id)) report(e, name + " without an element");
		}
	}
	const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
	for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) problems.push("two elements have the id " + id);
	if (document.querySelectorAll("h1").length !== 1) problems.push(document.querySelectorAll("h1").length + " first headings");
	const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(isShown).map((e) => Number(e.nodeName[1]));
	levels.forEach((level, i) => { if (level > (levels[i - 1] ?? 0) + 1) problems.push("a heading of level " + level + " follows level " + (levels[i - 1] ?? 0)); });
	return problems;
})()`

// TestUIAccessible checks the pages of jobs in different states, on a screen and on a phone, with light and dark colours.
func TestUIAccessible(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	shop := s.RunJobUntilStatus("shop", "service", "running",
		systemtest.NewRawExecShellTask("migrate", "while :; do echo 'waiting for the database at 10.0.0.5:5432'; sleep 1; done", systemtest.AsPrestartTask),
		systemtest.NewRawExecShellTask("web", systemtest.SleepForeverScript))
	imported := s.RunJobUntilStatus("import", "batch", "failed",
		systemtest.NewRawExecShellTask("main", "echo 'reading orders.csv'; echo 'line 4711: no such customer: 0815' >&2; exit 3", systemtest.WithoutRestart))
	s.RunJobUntilStatus("report", "service", "running", systemtest.NewRawExecShellTask("main", "echo ready; "+systemtest.SleepForeverScript))
	for _, memory := range []int{10, 99_999_999} {
		job := newUIJob("huge", 1)
		job.TaskGroups[0].Tasks[0].Resources.MemoryMB = &memory
		if _, _, err := s.Jobs().Register(job, nil); err != nil {
			t.Fatal(err)
		}
	}

	p := systemtest.OpenSharedBrowser(t).OpenTab(s.Address, "/ui/")
	p.AllowError("/submission?") // the status 404 of jobs that were submitted without their text
	const dark, phone, phoneHeight = true, 400, 800
	for _, page := range []struct{ name, path, selector, text string }{
		{"jobs", "/ui/jobs", "td", "shop"},
		{"job", "/ui/jobs/shop@default", "td", "web"},
		{"job-failed", "/ui/jobs/import@default", "h2", "This job has failed"},
		{"job-versions", "/ui/jobs/huge@default/versions", ".diff", "MemoryMB"},
		{"job-definition", "/ui/jobs/shop@default/definition", "pre", "shop"},
		{"allocations", "/ui/allocations", "td", "shop.g[0]"},
		{"allocation", "/ui/allocations/" + shop.ID, "td", "migrate"},
		{"timeline", "/ui/allocations/" + shop.ID + "/timeline", ".situation li", "web pending: waits for task \"migrate\" to end for "},
		{"task", "/ui/allocations/" + imported.ID + "/main", "pre", "line 4711"},
		{"logs", "/ui/allocations/" + imported.ID + "/main/logs", ".line", "line 4711"},
		{"run", "/ui/jobs/run?job=huge", ".hcl-name", `"ID"`},
		{"node", "/ui/clients", "td", "raw_exec"},
		{"plugins", "/ui/plugins", "summary", "script"},
		{"volumes", "/ui/storage", "h1", "Volumes"},
		{"services", "/ui/services", "main", "No services."},
		{"variables", "/ui/variables", "main", "No variables."},
		{"evaluation", "/ui/evaluations/" + shop.EvalID, "main", "the job was submitted"},
		{"evaluations", "/ui/evaluations", "td", "the job was submitted"},
		{"events", "/ui/events", "h1", "Events"},
		{"token", "/ui/settings/tokens", "h1", "Token"},
	} {
		p.OpenPath(page.path)
		p.WaitText(page.selector, page.text)
		p.WaitFor(`document.querySelector("main h1").checkVisibility()`)
		for _, colours := range []struct {
			name   string
			isDark bool
		}{{"light", !dark}, {"dark", dark}} {
			p.PreferColours(colours.isDark)
			for _, size := range [][2]int64{{1280, 800}, {phone, phoneHeight}} {
				p.SetViewportSize(size[0], size[1])
				p.WaitFor(fmt.Sprintf("innerWidth === %d", size[0]))
				name := fmt.Sprintf("%s-%d-%s", page.name, size[0], colours.name)
				for _, problem := range systemtest.Eval[[]string](p, accessibilityProblems) {
					t.Errorf("%s: %s", name, problem)
				}
				if width := systemtest.Eval[int64](p, "document.documentElement.scrollWidth"); width > size[0] {
					t.Errorf("%s is %d pixels wide", name, width)
				}
				p.ScreenshotIfEnabled(name)
			}
		}
	}
	// The check finds a problem of each kind.
	systemtest.Eval[chromedp.Void](p, `document.querySelector("main").insertAdjacentElement("beforeend", Object.assign(document.createElement("button"), { id: "main" })).style = "color: #777; background: #888; width: 9px; height: 9px; padding: 0"`)
	systemtest.Eval[chromedp.Void](p, `document.querySelector("main").append(Object.assign(document.createElement("h4"), { textContent: "pale", style: "color: #888; background: #777" }))`)
	for _, want := range []string{"contrast 1.", "no name: <button", "target of 9×9: <button", "two elements have the id main", "a heading of level 4"} {
		p.WaitFor(fmt.Sprintf(`%s.some((problem) => problem.includes(%q))`, accessibilityProblems, want))
	}
}
