package pages

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// recordChanges is a script that stores in the tab each request of a page that is no read.
const recordChanges = `
const record = (text) => sessionStorage.setItem("changes", (sessionStorage.getItem("changes") ?? "") + text + "\n");
const fetchUnrecorded = window.fetch;
window.fetch = (path, options) => {
	if ((options?.method ?? "GET") !== "GET") record(options.method + " " + path);
	return fetchUnrecorded(path, options);
};
window.WebSocket = class { constructor(path) { record("WebSocket " + path); } };`

// enabledControls is an expression: what can be clicked on the page, except for the order of tables and the removal of
// the token. The key of a link is its address, that of a button its text.
const enabledControls = `[...document.querySelectorAll("#top button, main button:not(.sort), a")].filter((e) => e.checkVisibility() && !e.disabled && e.textContent !== "Forget the token" && (e.nodeName !== "A" || e.getAttribute("href")?.startsWith("/ui/")))
	.map((e) => ({ e, key: e.getAttribute("href") ?? location.pathname + " " + (e.getAttribute("aria-label") ?? e.textContent) }))`

// pageWithText is a page with a text that the complete page has.
type pageWithText struct{ path, text string }

// clickAll clicks all that can be clicked on the pages of a tab. Each page fulfils the condition ready. A request that changes
// something must be permitted, and nothing may lead to the form for a token.
func clickAll(t *testing.T, p *systemtest.WebPage, pages []pageWithText, ready string, isPermitted func(request string) bool) {
	t.Helper()
	clicked := map[string]bool{}
	for _, shown := range pages {
		open := func() {
			p.OpenPath(shown.path)
			p.WaitText("main", shown.text)
			p.WaitFor(ready)
		}
		open()
		for _, key := range systemtest.Eval[[]string](p, enabledControls+`.map((c) => c.key)`) {
			if clicked[key] {
				continue
			}
			clicked[key] = true
			open()
			p.WaitFor(fmt.Sprintf(`%s.some((c) => c.key === %q)`, enabledControls, key))
			systemtest.Eval[chromedp.Void](p, fmt.Sprintf(`(async () => {
				%s.find((c) => c.key === %q).e.click();
				await new Promise((resolve) => setTimeout(resolve, 200));
				const form = document.querySelector("dialog[open] form");
				form?.requestSubmit();
				if (form) await new Promise((resolve) => setTimeout(resolve, 200));
			})()`, enabledControls, key))
			for request := range strings.Lines(systemtest.Eval[string](p, `sessionStorage.getItem("changes") ?? ""`)) {
				if !isPermitted(strings.TrimSpace(request)) {
					t.Errorf("%s: %q sends %s", shown.path, key, request)
				}
			}
			systemtest.Eval[chromedp.Void](p, `sessionStorage.removeItem("changes")`)
			if systemtest.Eval[bool](p, `document.querySelector("form.login") !== null`) {
				t.Errorf("%s: %q leads to a page that the token does not permit", shown.path, key)
			}
		}
	}
	t.Logf("clicked: %q", slices.Sorted(maps.Keys(clicked)))
}

// TestUITokenWithSomeRights clicks all that can be clicked in a tab with an ACL token that may read jobs and scale them.
func TestUITokenWithSomeRights(t *testing.T) {
	slowtest.Skip(t, "clicks all buttons of the pages in a browser; TestRoutesAgreeAboutWhatATokenSees compares the rights that the page gets")
	t.Parallel()
	s := systemtest.StartPersistentAgent(t, nil, "acl {\n  enabled = true\n}\n")
	address := s.PinHTTPPort()
	s.RunJobUntilStatus("web", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	allocs, _, err := s.Client.Allocations().List(nil)
	if err != nil || len(allocs) != 1 {
		t.Fatalf("%d allocations, %v", len(allocs), err)
	}
	rules := `namespace "default" { capabilities = ["list-jobs", "read-job", "scale-job"] }`
	if _, err := s.Client.ACLPolicies().Upsert(&api.ACLPolicy{Name: "scaler", Rules: rules}, nil); err != nil {
		t.Fatal(err)
	}
	token, _, err := s.Client.ACLTokens().Create(&api.ACLToken{Type: "client", Policies: []string{"scaler"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	allocation := "/ui/allocations/" + allocs[0].ID
	p := systemtest.OpenSharedBrowser(t).OpenTab(address, "/ui/jobs", "status of 403", "status of 404") // the job has no source
	if _, err := chromedp.Call(p.Ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: recordChanges}); err != nil {
		t.Fatal(err)
	}
	p.LogIn(token.SecretID)
	p.WaitText("main", "1 running")
	clickAll(t, p, []pageWithText{
		{"/ui/jobs", "1 running"}, {"/ui/jobs/web@default", "main"}, {"/ui/jobs/web@default/versions", "Version 0"}, {"/ui/jobs/web@default/definition", "JSON"}, {allocation, "Restart all tasks"},
		{allocation + "/main", "Started"}, {"/ui/allocations", "web.g[0]"}, {"/ui/evaluations", "the job was submitted"},
	}, "true", func(request string) bool {
		return strings.Contains(request, "/v1/job/web/scale") || strings.Contains(request, "/v1/search")
	})
	p.OpenPath("/ui/jobs/web@default")
	p.WaitText("button:not(:disabled)", "Scale…")
	p.WaitText("button:disabled", "Stop…")
	p.WaitText("nav a[aria-disabled]", "Variables")
}

// TestUIReadOnlyToken clicks all that can be clicked in a tab with the read-only token: nothing sends a change, and
// nothing leads to a page that the token does not permit.
func TestUIReadOnlyToken(t *testing.T) {
	slowtest.Skip(t, "clicks all buttons of the pages in a browser; TestReadOnlyTokenAccess tests the agent")
	t.Parallel()
	s := systemtest.StartPersistentAgent(t, nil)
	address := s.PinHTTPPort()
	s.RunJobUntilStatus("web", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	c, err := api.NewClient(&api.Config{Address: address, SecretID: readToken(t, filepath.Join(s.DataDir, "token"))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	allocs, _, err := c.Allocations().List(nil)
	if err != nil || len(allocs) != 1 {
		t.Fatalf("%d allocations, %v", len(allocs), err)
	}
	allocation := "/ui/allocations/" + allocs[0].ID
	pages := []pageWithText{
		{"/ui/jobs", "1 running"}, {"/ui/jobs/web@default", "main"}, {"/ui/allocations", "web.g[0]"}, {allocation, "Restart all tasks"}, {allocation + "/main", "Started"}, {"/ui/clients", "raw_exec"},
		{"/ui/services", "No services"}, {"/ui/evaluations", "the job was submitted"}, {"/ui/evaluations/" + allocs[0].EvalID, "the job was submitted"}, {"/ui/events", "Events"}, {"/ui/settings/tokens", "read-only"},
		{"/ui/jobs/web@default/deployments", "Deployments"}, {"/ui/jobs/web@default/allocations", "g[0]"}, {"/ui/jobs/web@default/evaluations", "the job was submitted"},
	}

	b := systemtest.OpenSharedBrowser(t)
	full := b.OpenTab(address, "/ui/jobs/web@default", "status of 403")
	full.LogIn(readToken(t, filepath.Join(s.DataDir, "token")))
	full.WaitText("button", "Stop…")
	if notice := systemtest.Eval[bool](full, `!document.querySelector("#read-only").hidden || document.querySelector("main [aria-disabled], main button:disabled") !== null`); notice {
		t.Error("actions are disabled with the operator's token")
	}

	p := b.OpenTab(address, "/ui/jobs", "status of 403")
	if _, err := chromedp.Call(p.Ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: recordChanges}); err != nil {
		t.Fatal(err)
	}
	p.LogIn(readToken(t, filepath.Join(s.DataDir, "token-read")))
	p.WaitFor(`!document.querySelector("#read-only").hidden`)
	clickAll(t, p, pages, `!document.querySelector("#read-only").hidden`, func(string) bool { return false })
	p.OpenPath("/ui/jobs/web@default")
	p.WaitText("button:disabled", "Stop…")
	p.WaitText("a[aria-disabled]", "Edit")
	p.OpenPath("/ui/jobs/run")
	p.WaitText("main", "does not permit this page")
	p.ScreenshotIfEnabled("read-only")

	testUnknownRights(t, address, readToken(t, filepath.Join(s.DataDir, "token")), readToken(t, filepath.Join(s.DataDir, "token-read")))
}

// failFirstRead is a script that makes the first request for the rights of a token fail.
const failFirstRead = `
let failed = false;
const fetchReliably = window.fetch;
window.fetch = (path, options) => {
	if (failed || !path.startsWith("/v1/acl/token/self") || !options.headers.has("X-Nomad-Token")) return fetchReliably(path, options);
	failed = true;
	return Promise.reject(new TypeError("no connection"));
};`

// testUnknownRights shows pages in tabs that have not read, or do not know, that their token is the read-only token.
func testUnknownRights(t *testing.T, address, token, readToken string) {
	t.Helper()
	b := systemtest.OpenSharedBrowser(t)
	p := b.OpenTab(address, "/ui/jobs/web@default", "status of 403")
	if _, err := chromedp.Call(p.Ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: failFirstRead}); err != nil {
		t.Fatal(err)
	}
	p.LogIn(readToken)
	p.WaitText("td", "running")
	p.OpenPath("/ui/jobs/web@default") // with the script
	p.WaitText("button:disabled", "Stop…")

	p = b.OpenTab(address, "/ui/jobs/web@default", "status of 403")
	p.LogIn(token)
	p.WaitText("button:not(:disabled)", "Stop…")
	systemtest.Eval[chromedp.Void](p, fmt.Sprintf(`sessionStorage.setItem("nomad-lite-token", %q)`, readToken))
	p.Click("Stop…")
	p.Click("Stop")
	p.WaitFor(`!document.querySelector("#read-only").hidden`)
	p.WaitText("h1", "web")
	p.WaitText("button:disabled", "Stop…")
}
