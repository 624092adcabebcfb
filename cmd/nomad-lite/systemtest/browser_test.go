package systemtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a headless Chromium, which ends with the test.
type browser struct {
	t   testing.TB
	ctx context.Context
}

// startBrowser starts Chromium. It skips the test if Chromium is not installed; with NOMAD_LITE_CI set, it fails
// the test instead.
func startBrowser(t testing.TB) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatalf("install chromium: %v", err)
		}
		t.Skipf("needs chromium, to show the pages of the agent: %v", err)
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(),
		append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.IgnoreCertErrors, chromedp.WindowSize(1280, 900))...)
	t.Cleanup(stop)
	ctx, closeBrowser := chromedp.NewContext(ctx)
	t.Cleanup(closeBrowser)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return &browser{t, ctx}
}

// webPage is a tab of a browser with the page of an agent. An error that the page logs, which includes each
// violation of the Content-Security-Policy, fails the test.
type webPage struct {
	t    testing.TB
	ctx  context.Context
	base string // base is the address of the agent

	mu            sync.Mutex
	allowedErrors []string
}

// pageTimeout is how long a test waits for a change of the page.
const pageTimeout = 30 * time.Second

// openTab opens a tab with its own session storage and shows a page of the agent. path starts with "/ui/". For
// allowedErrors see allowError.
func (b *browser) openTab(address, path string, allowedErrors ...string) *webPage {
	b.t.Helper()
	ctx, closeTab := chromedp.NewContext(b.ctx)
	b.t.Cleanup(closeTab)
	p := &webPage{t: b.t, ctx: ctx, base: address, allowedErrors: allowedErrors}
	if err := chromedp.Listen(ctx, p.onEvent); err != nil {
		b.t.Fatalf("open a tab: %v", err)
	}
	// Only one tab of a browser has the focus, and the page does not follow changes in hidden tabs.
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		b.t.Fatal(err)
	}
	p.open(path)
	return p
}

func (p *webPage) onEvent(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.reportError(e.ExceptionDetails.Text + " " + fmt.Sprint(e.ExceptionDetails.Exception))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			p.reportError(e.Entry.Text + " " + e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			p.reportError(fmt.Sprint("console.error ", e.Args))
		}
	}
}

func (p *webPage) reportError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, allowed := range p.allowedErrors {
		if strings.Contains(text, allowed) {
			return
		}
	}
	p.t.Errorf("the page has an error: %s", text)
}

// allowError permits errors of the page that contain a text: the browser logs each reply with an error status.
func (p *webPage) allowError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowedErrors = append(p.allowedErrors, text)
}

func (p *webPage) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("%s: %v\n%s", what, err, p.text())
	}
}

// open shows a page of the agent.
func (p *webPage) open(path string) {
	p.t.Helper()
	p.do("open "+path, chromedp.Navigate(p.base+path))
}

// eval evaluates a JavaScript expression, a promise included, and returns its value.
func eval[T any](p *webPage, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// waitFor waits until a JavaScript expression is true.
func (p *webPage) waitFor(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(pageTimeout); !eval[bool](p, "Boolean("+expression+")"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s is not true on the page:\n%s", expression, p.text())
		}
	}
}

// waitText waits until the text of an element that a CSS selector matches contains a text.
func (p *webPage) waitText(selector, text string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.textContent.includes(%q))", selector, text))
}

// click clicks the first button or link whose text or label contains a text, as a mouse does: the element must be visible and
// not be covered. While a dialog is open, only the elements of the dialog can be clicked.
func (p *webPage) click(text string) {
	p.t.Helper()
	// The expression is evaluated again while the page redraws the element.
	found := fmt.Sprintf(`(() => {
		const shown = [...(document.querySelector("dialog[open]") ?? document).querySelectorAll("button, a, [role=button], [role=tab], summary, input[type=checkbox]")].filter((e) => e.checkVisibility() && !e.disabled);
		const has = (e) => e.textContent.includes(%[1]q) || e.getAttribute("aria-label")?.includes(%[1]q);
		return shown.find((e) => e.textContent.trim() === %[1]q) ?? shown.find(has);
	})()`, text)
	p.waitFor(found)
	p.do("click "+text, chromedp.Click(chromedp.JSPath(found)))
}

// enter replaces the text of an input that a CSS selector matches, with events of the keyboard.
func (p *webPage) enter(selector, text string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("document.querySelector(%q)", selector))
	eval[chromedp.Void](p, fmt.Sprintf("(() => { const e = document.querySelector(%q); e.focus(); e.select?.() })()", selector))
	p.press(text)
}

// choose selects the option with a value in a list that a CSS selector matches.
func (p *webPage) choose(selector, value string) {
	p.t.Helper()
	eval[chromedp.Void](p, fmt.Sprintf(`{ const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event("change")) }`, selector, value))
}

// press sends keys to the element that has the focus; kb has the names of special keys.
func (p *webPage) press(keys string) {
	p.t.Helper()
	p.do("press "+keys, chromedp.KeyEvent(keys))
}

// setHidden makes the page believe that its tab is hidden, or shown.
func (p *webPage) setHidden(hidden bool) {
	p.t.Helper()
	eval[chromedp.Void](p, fmt.Sprintf(`{ Object.defineProperty(document, "hidden", { value: %v, configurable: true }); document.dispatchEvent(new Event("visibilitychange")) }`, hidden))
}

// setSize makes the window of the tab as large as a screen, in pixels.
func (p *webPage) setSize(width, height int64) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
	if err != nil {
		p.t.Fatal(err)
	}
}

// setDark makes the browser prefer the dark scheme of colours.
func (p *webPage) setDark() {
	p.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		p.t.Fatal(err)
	}
}

// disableCache makes the tab load all files of each page that it opens.
func (p *webPage) disableCache() {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true}); err != nil {
		p.t.Fatal(err)
	}
}

// text returns the text of the page.
func (p *webPage) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// screenshot writes a picture of the page to the directory of NOMAD_LITE_SCREENSHOTS, if that is set: for a
// comparison by eye, and for the documents.
func (p *webPage) screenshot(name string) {
	p.t.Helper()
	dir := os.Getenv("NOMAD_LITE_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := chromedp.Call(p.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/"+name+".png", picture.Data, 0o600); err != nil {
		p.t.Fatal(err)
	}
}
