package systemtest

import (
	"bytes"
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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentsocket"
)

var readyPattern = regexp.MustCompile(`agent is ready: (https?://([^,]+))`)

// fixPort gives later agents the port of the running one, and returns the address.
func (s *persistentAgent) fixPort() string {
	s.t.Helper()
	log, err := os.ReadFile(s.logFile)
	if err != nil {
		s.t.Fatal(err)
	}
	found := readyPattern.FindSubmatch(log)
	if found == nil {
		s.t.Fatalf("no address in the log:\n%s", log)
	}
	config, err := os.ReadFile(s.configFile)
	if err != nil {
		s.t.Fatal(err)
	}
	port := bytes.TrimPrefix(found[2], []byte("127.0.0.1:"))
	config = bytes.Replace(config, []byte("http = 0"), append([]byte("http = "), port...), 1)
	if err := os.WriteFile(s.configFile, config, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return string(found[1])
}

func readToken(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// logIn enters a token into the form.
func (p *webPage) logIn(token string) {
	p.t.Helper()
	p.waitText("h1", "Log in")
	p.enter("#token", token)
	p.click("Log in")
}

// TestUILoginAndLostConnection has tabs with different tokens open while the agent is killed, and started with another token.
func TestUILoginAndLostConnection(t *testing.T) {
	t.Parallel()
	s := startPersistentAgent(t, nil)
	address := s.fixPort()
	tokenFile := filepath.Join(s.dataDir, "token")
	token, readToken := readToken(t, tokenFile), readToken(t, filepath.Join(s.dataDir, "token-read"))
	b := startBrowser(t)

	p := b.openTab(address, "/ui/clients", "status of 403", "net::ERR_")
	p.screenshot("login")
	p.logIn("wrong")
	p.waitText("[role=alert]", "rejects this token")
	p.logIn(token)
	p.waitText("td", "raw_exec")

	reader := b.openTab(address, "/ui/variables", "status of 403")
	reader.logIn(readToken)
	reader.waitText("main", "does not permit this page")
	reader.open("/ui/services")
	reader.waitText("main", "No services.")
	p.click("Variables")
	p.waitText("main", "No variables.")
	p.click("Token")
	p.waitText("main", "accepts the token")
	p.click("Jobs")
	p.waitText("main", "No jobs.")
	reader.do("leave", chromedp.Navigate("about:blank"))

	s.end(unix.SIGKILL)
	p.waitText("#connection", "is lost")
	p.screenshot("lost")
	s.start()
	p.waitFor(`document.querySelector("#connection").hidden`)
	s.run("back", "batch", "complete", newShellTask("main", "exit 0"))
	p.waitText("td", "back")

	s.end(unix.SIGTERM)
	if err := os.WriteFile(tokenFile, []byte("another-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	p.waitText("main", "no longer accepts the token")
	p.logIn("another-token")
	p.waitText("td", "back")
	p.open("/ui/settings/tokens")
	p.click("Forget the token")
	p.waitText("h1", "Log in")
	if eval[int](p, "sessionStorage.length") != 0 {
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
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(10 * time.Millisecond) {
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
	t.Parallel()
	b := startBrowser(t)
	t.Run("login with a token", func(t *testing.T) {
		a := startTokenProtectedAgent(t, true)
		cmd, address := startUICommand(t, a.socket, "-authenticate")
		if strings.Contains(address, "#") {
			t.Errorf("the browser was started with %s, which each account can see", address)
		}
		b := &browser{t, b.ctx}
		p := b.openTab("", address)
		p.waitText("main", "No jobs.") // over TLS
		if at := eval[string](p, "location.href"); at != "https://"+a.address+"/ui/" {
			t.Errorf("the page is at %s", at)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the command: %v", err)
		}
		if stored, token := eval[string](p, "sessionStorage.getItem('nomad-lite-token')"), readToken(t, filepath.Join(filepath.Dir(a.socket), "token")); stored != token {
			t.Errorf("the page has the token %q, want %q", stored, token)
		}
		p.click("Node")
		p.waitText("h1", "ready")
	})
	t.Run("agent with a socket only", func(t *testing.T) {
		dir := t.TempDir()
		agent := exec.Command("nomad-lite", "agent", "-dev")
		agent.Env = append(os.Environ(), workDirEnvVar+"="+dir, "TMPDIR="+dir)
		socket := startAgentCommand(t, agent, regexp.MustCompile(`agent is ready: unix://([^,]+`+agentsocket.FileName+`)`))
		cmd, address := startUICommand(t, socket)
		b := &browser{t, b.ctx}
		p := b.openTab("", address)
		p.waitText("main", "No jobs.")
		if at := eval[string](p, "location.href"); at != address+"ui/" {
			t.Errorf("the page is at %s, opened as %s", at, address)
		}
		p.click("Plugins")
		p.waitText("summary", "script")
		p.click("Variables")
		p.click("New variable")
		p.enter("#variable-path", "a")
		p.enter(".item input", "b")
		p.click("Save")
		p.waitText("td", "••••")
		other := b.openTab(strings.TrimSuffix(address, "/"), "/ui/jobs", "status of 403")
		other.waitText("h1", "Log in")
		p.allowError("net::ERR_")
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
const maxPageBytes = 300_000

// TestUIFrame visits the pages in the navigation with the keyboard, at the width of a phone, and in the dark.
func TestUIFrame(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	s.run("a-job-with-quite-a-long-name-for-a-phone", "service", "running", newShellTask("main", sleepForeverScript))
	b := startBrowser(t)
	p := b.openTab(s.address, "/ui/")
	p.waitText("td", "a-job")
	p.press("\t")
	if text := eval[string](p, "document.activeElement.textContent"); text != "Skip to the content" {
		t.Errorf("the first stop of the keyboard is %q", text)
	}
	titles := eval[[]string](p, `[...document.querySelectorAll("#top nav a")].map((a) => a.textContent)`)
	for _, title := range titles {
		eval[chromedp.Void](p, `document.querySelector("#top > a").focus()`)
		for range len(titles) {
			p.press("\t")
			if eval[string](p, "document.activeElement.textContent") == title {
				break
			}
		}
		p.press("\r")
		p.waitFor(fmt.Sprintf(`document.querySelector("#top a[aria-current=page]")?.textContent === %q && document.title !== "nomad-lite" && document.querySelector("main h1")`, title))
		if focus := eval[string](p, "document.activeElement.closest('main') && 'main'"); focus != "main" {
			t.Errorf("%s: the focus is not in the content", title)
		}
		if unnamed := eval[[]string](p, unnamedElements); len(unnamed) > 0 {
			t.Errorf("%s: %q", title, unnamed)
		}
	}

	p.setSize(phoneWidth, phoneHeight)
	p.setDark()
	p.disableCache()
	for i, href := range eval[[]string](p, `[...document.querySelectorAll("#top nav a")].map((a) => a.getAttribute("href"))`) {
		p.open(href)
		p.waitFor(`document.querySelector("main h1") && (document.querySelector("main table, main p, main form"))`)
		if width := eval[int](p, "document.documentElement.scrollWidth"); width > phoneWidth {
			t.Errorf("%s is %d pixels wide", href, width)
		}
		if size := eval[int](p, pageBytes); size > maxPageBytes || size < 10_000 {
			t.Errorf("%s has transferred %d bytes", href, size)
		} else {
			t.Logf("%-20s %6d bytes", href, size)
		}
		p.screenshot("phone-" + titles[i])
	}
}

// pageBytes is an expression: the number of bytes of the page, its files and its complete requests.
const pageBytes = `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].reduce((sum, e) => sum + e.encodedBodySize, 0)`
