package systemtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
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

// Browser is a headless Chromium, or a browser context in one, which has storage and connections of its own. It ends
// with the test.
type Browser struct {
	t   testing.TB
	Ctx context.Context
}

// ForSubtest returns the browser for a subtest, so that a failed operation of the browser fails the subtest.
func (b *Browser) ForSubtest(t testing.TB) *Browser { return &Browser{t: t, Ctx: b.Ctx} }

// StartDedicatedChromium starts Chromium with additional flags. It skips the test if Chromium is not installed; with
// NOMAD_LITE_CI set, it fails the test instead.
func StartDedicatedChromium(t testing.TB, flags ...chromedp.ExecAllocatorOption) *Browser {
	t.Helper()
	ctx, stop, err := startChromium(findChromiumOrSkip(t), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return &Browser{t, ctx}
}

// OpenSharedBrowser returns a browser context in a Chromium that all tests of the package share.
// RunTestsOrProgram stops that Chromium.
func OpenSharedBrowser(t testing.TB) *Browser {
	t.Helper()
	path := findChromiumOrSkip(t)
	sharedChromium.start.Do(func() { sharedChromium.ctx, sharedChromium.stop, sharedChromium.err = startChromium(path) })
	if err := sharedChromium.err; err != nil {
		t.Fatal(err)
	}
	ctx, closeBrowser := chromedp.NewContext(sharedChromium.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(closeBrowser)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a browser: %v", err)
	}
	return &Browser{t, ctx}
}

// sharedChromium is the process whose browser contexts OpenSharedBrowser returns.
var sharedChromium struct {
	start sync.Once
	ctx   context.Context
	stop  func() // nil if Chromium does not run
	err   error
}

func stopSharedChromium() {
	if sharedChromium.stop != nil {
		sharedChromium.stop()
	}
}

func findChromiumOrSkip(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatalf("install chromium: %v", err)
		}
		t.Skipf("needs chromium, to show the pages of the agent: %v", err)
	}
	return path
}

func startChromium(path string, flags ...chromedp.ExecAllocatorOption) (browserCtx context.Context, stop func(), err error) {
	ctx, stopProcess := chromedp.NewExecAllocator(context.Background(),
		slices.Concat(chromedp.DefaultExecAllocatorOptions[:], []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.IgnoreCertErrors, chromedp.WindowSize(1280, 900)}, flags)...)
	ctx, closeBrowser := chromedp.NewContext(ctx)
	if err := chromedp.Do(ctx); err != nil {
		stopProcess()
		return nil, nil, fmt.Errorf("start chromium: %w", err)
	}
	return ctx, func() { closeBrowser(); stopProcess() }, nil
}

// WebPage is a tab of a browser with the web page of an agent. Each error that the page or the browser logs, including
// violations of the Content-Security-Policy, fails the test.
type WebPage struct {
	T            testing.TB
	Ctx          context.Context
	agentAddress string

	mu                      sync.Mutex
	allowedErrorTexts       []string
	networkChangeErrorCount int
}

// networkChanged is the browser's error for requests that were in progress when the machine got or lost a network
// interface, as in tests of other packages. The page repeats requests for data, but not the request for its own first
// script.
const networkChanged = "net::ERR_NETWORK_CHANGED"

// PageTimeout is how long a test waits for a change of the page.
const PageTimeout = 30 * time.Second

// OpenTab opens a tab with its own session storage, and shows a page of the agent in it. path starts with "/ui/". For
// allowedErrorTexts see AllowError.
func (b *Browser) OpenTab(agentAddress, path string, allowedErrorTexts ...string) *WebPage {
	b.t.Helper()
	ctx, closeTab := chromedp.NewContext(b.Ctx)
	b.t.Cleanup(closeTab)
	p := &WebPage{T: b.t, Ctx: ctx, agentAddress: agentAddress, allowedErrorTexts: allowedErrorTexts}
	if err := chromedp.Listen(ctx, p.reportErrorEvent); err != nil {
		b.t.Fatalf("open a tab: %v", err)
	}
	// Only one tab of a browser has the focus, and the page does not update while its tab is hidden.
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		b.t.Fatal(err)
	}
	p.OpenPath(path)
	return p
}

func (p *WebPage) reportErrorEvent(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.failTestUnlessAllowed(e.ExceptionDetails.Text + " " + fmt.Sprint(e.ExceptionDetails.Exception))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			p.failTestUnlessAllowed(e.Entry.Text + " " + e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			p.failTestUnlessAllowed(fmt.Sprint("console.error ", e.Args))
		}
	}
}

func (p *WebPage) failTestUnlessAllowed(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if strings.Contains(text, networkChanged) {
		p.networkChangeErrorCount++
		return
	}
	for _, allowed := range p.allowedErrorTexts {
		if strings.Contains(text, allowed) {
			return
		}
	}
	p.T.Errorf("the page has an error: %s", text)
}

// AllowError permits logged errors that contain a text. The browser logs an error for each response with an error
// status.
func (p *WebPage) AllowError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowedErrorTexts = append(p.allowedErrorTexts, text)
}

// RunSteps executes steps in the tab. If one fails, the test fails with description and the text of the page.
func (p *WebPage) RunSteps(description string, steps ...chromedp.Action[chromedp.Void]) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(p.Ctx, PageTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.T.Fatalf("%s: %v\n%s", description, err, p.Text())
	}
}

// OpenPath shows a page of the agent.
func (p *WebPage) OpenPath(path string) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(p.Ctx, PageTimeout)
	defer cancel()
	for {
		changes := p.countNetworkChangeErrors()
		err := chromedp.Do(ctx, chromedp.Navigate(p.agentAddress+path))
		if err == nil && p.countNetworkChangeErrors() == changes {
			return
		}
		if err != nil && !strings.Contains(err.Error(), networkChanged) {
			p.T.Fatalf("open %s: %v\n%s", path, err, p.Text())
		}
	}
}

func (p *WebPage) countNetworkChangeErrors() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.networkChangeErrorCount
}

// Eval evaluates a JavaScript expression in the page and returns its value. If the value is a promise, Eval waits for
// its result.
func Eval[T any](p *WebPage, jsExpression string) T {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(p.Ctx, PageTimeout)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](jsExpression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.T.Fatalf("%s: %v", jsExpression, err)
	}
	return value
}

// WaitFor waits until a JavaScript expression is true.
func (p *WebPage) WaitFor(jsExpression string) {
	p.T.Helper()
	for began := time.Now(); !Eval[bool](p, "Boolean("+jsExpression+")"); sleepBetweenChecks(began, 10*time.Millisecond) {
		if time.Since(began) > PageTimeout {
			p.T.Fatalf("%s is not true on the page:\n%s", jsExpression, p.Text())
		}
	}
}

// WaitText waits until an element that the CSS selector matches contains a text.
func (p *WebPage) WaitText(selector, text string) {
	p.T.Helper()
	p.WaitFor(fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.textContent.includes(%q))", selector, text))
}

// Click clicks the first button or link whose text or label contains textOrLabel. Like a mouse, it requires that the
// element is visible and not covered. While a dialog is open, it clicks only elements of the dialog.
func (p *WebPage) Click(textOrLabel string) {
	p.T.Helper()
	// The page can replace the element while it redraws, so chromedp evaluates the expression again.
	found := fmt.Sprintf(`(() => {
		const shown = [...(document.querySelector("dialog[open]") ?? document).querySelectorAll("button, a, [role=button], [role=tab], summary, input[type=checkbox]")].filter((e) => e.checkVisibility() && !e.disabled);
		const has = (e) => e.textContent.includes(%[1]q) || e.getAttribute("aria-label")?.includes(%[1]q);
		return shown.find((e) => e.textContent.trim() === %[1]q) ?? shown.find(has);
	})()`, textOrLabel)
	p.WaitFor(found)
	p.RunSteps("click "+textOrLabel, chromedp.Click(chromedp.JSPath(found)))
}

// EnterText replaces the text of the input that a CSS selector matches, by key events.
func (p *WebPage) EnterText(selector, text string) {
	p.T.Helper()
	p.WaitFor(fmt.Sprintf("document.querySelector(%q)", selector))
	Eval[chromedp.Void](p, fmt.Sprintf("(() => { const e = document.querySelector(%q); e.focus(); e.select?.() })()", selector))
	p.PressKeys(text)
}

// SelectOption selects the option with a value in the select element that a CSS selector matches.
func (p *WebPage) SelectOption(selector, value string) {
	p.T.Helper()
	Eval[chromedp.Void](p, fmt.Sprintf(`{ const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event("change")) }`, selector, value))
}

// PressKeys sends keys to the element that has the focus. Package kb has the names of special keys.
func (p *WebPage) PressKeys(keys string) {
	p.T.Helper()
	p.RunSteps("press "+keys, chromedp.KeyEvent(keys))
}

// SimulateHidden makes the page detect that its tab is hidden, or shown again.
func (p *WebPage) SimulateHidden(hidden bool) {
	p.T.Helper()
	Eval[chromedp.Void](p, fmt.Sprintf(`{ Object.defineProperty(document, "hidden", { value: %v, configurable: true }); document.dispatchEvent(new Event("visibilitychange")) }`, hidden))
}

// SetViewportSize sets the size of the tab's window, in pixels.
func (p *WebPage) SetViewportSize(width, height int64) {
	p.T.Helper()
	_, err := chromedp.Call(p.Ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
	if err != nil {
		p.T.Fatal(err)
	}
}

// PreferDarkColours makes the browser report that the user prefers a dark colour scheme.
func (p *WebPage) PreferDarkColours() { p.T.Helper(); p.PreferColours(true) }

// PreferColours makes the browser report that the user prefers a dark or a light colour scheme.
func (p *WebPage) PreferColours(dark bool) {
	p.T.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}}
	if dark {
		features[0].Value = "dark"
	}
	if _, err := chromedp.Call(p.Ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		p.T.Fatal(err)
	}
}

// DisableCache makes the tab load all files of each page from the agent.
func (p *WebPage) DisableCache() {
	p.T.Helper()
	if _, err := chromedp.Call(p.Ctx, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true}); err != nil {
		p.T.Fatal(err)
	}
}

// Text returns the text of the page.
func (p *WebPage) Text() string {
	ctx, cancel := context.WithTimeout(p.Ctx, PageTimeout)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// ScreenshotIfEnabled writes a picture of the page to the directory that NOMAD_LITE_SCREENSHOTS names, if that is set.
// The pictures are for a comparison by eye and for the documents.
func (p *WebPage) ScreenshotIfEnabled(name string) {
	p.T.Helper()
	dir := os.Getenv("NOMAD_LITE_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := chromedp.Call(p.Ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	if err != nil {
		p.T.Fatal(err)
	}
	if err := os.WriteFile(dir+"/"+name+".png", picture.Data, 0o600); err != nil {
		p.T.Fatal(err)
	}
}

// InstallJobShownTimer makes each page that the tab loads from now on store in window.jobShownAt the time, in
// milliseconds after the start of the load, at which a table of the page shows a job. It disables the cache of the tab.
func (p *WebPage) InstallJobShownTimer(job string) {
	p.T.Helper()
	script := fmt.Sprintf(`new MutationObserver((_, observer) => {
		if (![...document.querySelectorAll("td")].some((e) => e.textContent.includes(%q))) return;
		window.jobShownAt = performance.now();
		observer.disconnect();
	}).observe(document, { childList: true, subtree: true, characterData: true })`, job)
	p.DisableCache()
	if _, err := chromedp.Call(p.Ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script}); err != nil {
		p.T.Fatal(err)
	}
}

// ShowEmptyPage shows about:blank, which sends no requests.
func (p *WebPage) ShowEmptyPage() {
	p.T.Helper()
	p.RunSteps("leave the page", chromedp.Navigate("about:blank"))
}

// PhoneWidth and PhoneHeight are the size of a phone's screen, in pixels.
const PhoneWidth, PhoneHeight = 360, 740

// CheckFitsPhone checks that the page needs no horizontal scrolling on a phone, and takes a screenshot with this name.
func (p *WebPage) CheckFitsPhone(screenshotName string) {
	p.T.Helper()
	p.SetViewportSize(PhoneWidth, PhoneHeight)
	p.WaitFor(fmt.Sprintf("innerWidth === %d", PhoneWidth))
	if Eval[bool](p, `document.documentElement.scrollWidth > innerWidth`) {
		p.T.Errorf("%s: the page is wider than the screen", screenshotName)
	}
	p.ScreenshotIfEnabled(screenshotName)
	p.SetViewportSize(1280, 900)
}
