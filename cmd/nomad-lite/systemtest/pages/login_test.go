package pages

import (
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestUISharedToken logs in one tab for itself, and another one for all tabs of the browser.
func TestUISharedToken(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartPersistentAgent(t, nil)
	address := s.PinHTTPPort()
	token := readToken(t, filepath.Join(s.DataDir, "token"))
	b := systemtest.OpenSharedBrowser(t)
	open := func(path string) *systemtest.WebPage {
		t.Helper()
		return b.OpenTab(address, path, "status of 403")
	}

	alone := open("/ui/jobs")
	alone.LogIn(token)
	alone.WaitText("main", "No jobs.")
	reader := open("/ui/jobs")
	reader.LogIn(readToken(t, filepath.Join(s.DataDir, "token-read")))
	reader.WaitText("main", "No jobs.")
	waiting := open("/ui/services")
	waiting.WaitText("h1", "Log in") // the other tabs share nothing
	first := open("/ui/jobs")
	first.WaitText("h1", "Log in")
	if systemtest.Eval[bool](first, `document.querySelector("input[name=share]").checked`) {
		t.Error("the token is shared by default")
	}
	waiting.WaitText("h1", "Log in")
	first.RunSteps("share the token", chromedp.Click(chromedp.CSS("input[name=share]")))
	first.LogIn(token)
	first.WaitText("main", "No jobs.")
	waiting.WaitText("main", "No services.")

	// The next tab gets the token from the one that has got it itself.
	first.ShowEmptyPage()
	next := open("/ui/variables")
	next.WaitText("main", "No variables.")
	next.OpenPath("/ui/settings/tokens")
	next.WaitText("main", "All tabs of this browser")
	reader.OpenPath("/ui/variables")
	reader.WaitText("main", "does not permit this page")
	if got := systemtest.Eval[int](next, "localStorage.length + document.cookie.length"); got != 0 {
		t.Error("the token is in storage that survives the browser")
	}

	next.Click("Forget the token")
	next.WaitText("h1", "Log in")
	waiting.Click("Jobs")
	waiting.WaitText("h1", "Log in")
	for name, p := range map[string]*systemtest.WebPage{"next": next, "waiting": waiting} {
		if got := systemtest.Eval[int](p, "sessionStorage.length"); got != 0 {
			t.Errorf("the tab %s still stores the token", name)
		}
	}
	alone.Click("Services")
	alone.WaitText("main", "No services.")
}
