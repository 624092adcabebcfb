package pages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

func readToken(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestUILoginAndLostConnection has tabs with different tokens open while the agent is killed, and started with another token.
func TestUILoginAndLostConnection(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartPersistentAgent(t, nil)
	address := s.PinHTTPPort()
	tokenFile := filepath.Join(s.DataDir, "token")
	token, readToken := readToken(t, tokenFile), readToken(t, filepath.Join(s.DataDir, "token-read"))
	b := systemtest.OpenSharedBrowser(t)

	p := b.OpenTab(address, "/ui/clients", "status of 403", "net::ERR_")
	p.ScreenshotIfEnabled("login")
	p.LogIn("wrong")
	p.WaitText("[role=alert]", "rejects this token")
	p.LogIn(token)
	p.WaitText("td", "raw_exec")

	reader := b.OpenTab(address, "/ui/variables", "status of 403")
	reader.LogIn(readToken)
	reader.WaitText("main", "does not permit this page")
	reader.OpenPath("/ui/services")
	reader.WaitText("main", "No services.")
	p.Click("Variables")
	p.WaitText("main", "No variables.")
	p.Click("Token")
	p.WaitText("main", "accepts the token")
	p.Click("Jobs")
	p.WaitText("main", "No jobs.")
	reader.RunSteps("leave", chromedp.Navigate("about:blank"))

	s.SignalAndWait(unix.SIGKILL)
	p.WaitText("#connection", "is lost")
	p.ScreenshotIfEnabled("lost")
	p.Click("Plugins")
	p.WaitText("h1", "Plugins")
	s.StartAndWaitReady()
	p.WaitText("main", "plugins have a process")
	p.WaitFor(`document.querySelector("#connection").hidden`)
	p.Click("Jobs")
	s.RunJobUntilStatus("back", "batch", "complete", systemtest.NewRawExecShellTask("main", "exit 0"))
	p.WaitText("td", "back")

	s.SignalAndWait(unix.SIGTERM)
	if err := os.WriteFile(tokenFile, []byte("another-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.StartAndWaitReady()
	p.WaitText("main", "no longer accepts the token")
	p.LogIn("another-token")
	p.WaitText("td", "back")
	p.OpenPath("/ui/settings/tokens")
	p.Click("Forget the token")
	p.WaitText("h1", "Log in")
	if systemtest.Eval[int](p, "sessionStorage.length") != 0 {
		t.Error("the token is still stored")
	}
}

// startUICommand starts "nomad-lite ui" with a browser that stores the address in its argument. It returns the
// command and the address.
func startUICommand(t *testing.T, socket string, args ...string) (*exec.Cmd, string) {
	t.Helper()
	dir := t.TempDir()
	opened, program := filepath.Join(dir, "opened"), filepath.Join(dir, "xdg-open")
	if err := os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\nprintf '%%s' \"$1\" > %[1]s.new && mv %[1]s.new %[1]s\n", opened), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nomad-lite", append([]string{"ui", "-address", "unix://" + socket}, args...)...)
	cmd.Env = append(os.Environ(), "DISPLAY=:0", "BROWSER=", "PATH="+dir+":"+os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // the command can have exited
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; time.Sleep(10 * time.Millisecond) {
		if address, err := os.ReadFile(opened); err == nil {
			return cmd, string(address)
		}
		if time.Now().After(deadline) {
			t.Fatal("no browser was started")
		}
	}
}

// TestUICommand opens the addresses with which the command starts a browser.
func TestUICommand(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	b := systemtest.OpenSharedBrowser(t)
	t.Run("login with a token", func(t *testing.T) {
		a := systemtest.StartTokenProtectedAgent(t, true)
		cmd, address := startUICommand(t, a.SocketPath, "-authenticate")
		if !strings.HasPrefix(address, "file:///") {
			t.Errorf("the browser was started with %s, which each account can see", address)
		}
		b := b.ForSubtest(t)
		p := b.OpenTab("", address)
		p.WaitText("main", "No jobs.") // over TLS
		if at := systemtest.Eval[string](p, "location.href"); at != "https://"+a.Address+"/ui/" {
			t.Errorf("the page is at %s", at)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the command: %v", err)
		}
		if stored, token := systemtest.Eval[string](p, "sessionStorage.getItem('nomad-lite-token')"), readToken(t, filepath.Join(filepath.Dir(a.SocketPath), "token")); stored != token {
			t.Errorf("the page has the token %q, want %q", stored, token)
		}
		p.Click("Node")
		p.WaitText("h1", "ready")
	})
	t.Run("agent with a socket only", func(t *testing.T) {
		dir := t.TempDir()
		agent := exec.Command("nomad-lite", "agent", "-dev")
		agent.Env = append(os.Environ(), systemtest.WorkDirEnvVar+"="+dir, "TMPDIR="+dir)
		socket := systemtest.StartAgentAndMatchLog(t, agent, regexp.MustCompile(`agent is ready: unix://([^,]+`+agentsocket.FileName+`)`))
		cmd, address := startUICommand(t, socket)
		b := b.ForSubtest(t)
		p := b.OpenTab("", address)
		p.WaitText("main", "No jobs.")
		if at := systemtest.Eval[string](p, "location.pathname + location.hash"); at != "/ui/" {
			t.Errorf("the page is at %s, opened as %s", at, address)
		}
		if entries := systemtest.Eval[int](p, "history.length"); entries > 2 { // the tab starts with an empty page
			t.Errorf("the history of the tab has %d entries", entries)
		}
		p.Click("Plugins")
		p.WaitText("summary", "script")
		p.Click("Variables")
		p.Click("New variable")
		p.EnterText("#variable-path", "a")
		p.EnterText(".item input", "b")
		p.Click("Save")
		p.WaitText("td", "••••")
		other := b.OpenTab(systemtest.Eval[string](p, "location.origin"), "/ui/jobs", "status of 403")
		other.WaitText("h1", "Log in")
		p.AllowError("net::ERR_")
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the command: %v", err)
		}
	})
}

// unnamedElements is an expression: the interactive elements of the page without a name for screen readers, and the
// number of first headings if there is not exactly one.
const unnamedElements = `[
	...[...document.querySelectorAll("button, a, input, select, textarea, summary, [role=region]")]
		.filter((e) => e.checkVisibility() && !e.textContent.trim() && !e.getAttribute("aria-label") && !e.labels?.length).map((e) => e.outerHTML),
	...(document.querySelectorAll("h1").length === 1 ? [] : [document.querySelectorAll("h1").length + " first headings"]),
]`

// maxPageBytes is the limit of the bytes that a page transfers on its first load, without the terminal.
const maxPageBytes = 150_000

// TestUIFrame visits the pages in the navigation with the keyboard, at the width of a phone, and in the dark.
func TestUIFrame(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	s.RunJobUntilStatus("a-job-with-quite-a-long-name-for-a-phone", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	b := systemtest.OpenSharedBrowser(t)
	p := b.OpenTab(s.Address, "/ui/")
	p.WaitText("td", "a-job")
	p.PressKeys("\t")
	if text := systemtest.Eval[string](p, "document.activeElement.textContent"); text != "Skip to the content" {
		t.Errorf("the first stop of the keyboard is %q", text)
	}
	titles := systemtest.Eval[[]string](p, `[...document.querySelectorAll("#top nav a")].map((a) => a.textContent)`)
	for _, title := range titles {
		systemtest.Eval[chromedp.Void](p, `document.querySelector("#top > a").focus()`)
		for range len(titles) {
			p.PressKeys("\t")
			if systemtest.Eval[string](p, "document.activeElement.textContent") == title {
				break
			}
		}
		p.PressKeys("\r")
		p.WaitFor(fmt.Sprintf(`document.querySelector("#top a[aria-current=page]")?.textContent === %q && document.title !== "nomad-lite" && document.querySelector("main h1")`, title))
		if focus := systemtest.Eval[string](p, "document.activeElement.closest('main') && 'main'"); focus != "main" {
			t.Errorf("%s: the focus is not in the content", title)
		}
		if unnamed := systemtest.Eval[[]string](p, unnamedElements); len(unnamed) > 0 {
			t.Errorf("%s: %q", title, unnamed)
		}
	}

	p.SetViewportSize(systemtest.PhoneWidth, systemtest.PhoneHeight)
	p.PreferDarkColours()
	p.DisableCache()
	for i, href := range systemtest.Eval[[]string](p, `[...document.querySelectorAll("#top nav a")].map((a) => a.getAttribute("href"))`) {
		p.OpenPath(href)
		p.WaitFor(`document.querySelector("main h1") && (document.querySelector("main table, main p, main form"))`)
		if width := systemtest.Eval[int](p, "document.documentElement.scrollWidth"); width > systemtest.PhoneWidth {
			t.Errorf("%s is %d pixels wide", href, width)
		}
		if size := systemtest.Eval[int](p, pageBytes); size > maxPageBytes || size < 10_000 {
			t.Errorf("%s has transferred %d bytes", href, size)
		} else {
			t.Logf("%-20s %6d bytes", href, size)
		}
		p.ScreenshotIfEnabled("phone-" + titles[i])
	}
}

// pageBytes is an expression: the number of bytes of the page, its files and its complete requests.
const pageBytes = `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].reduce((sum, e) => sum + e.encodedBodySize, 0)`
