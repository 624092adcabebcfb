package pages

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestDocsSiteAccessible checks pages of the site of the documentation on a screen and on a phone, with light and dark colours, and its search:
// from a web server below a path, and from a folder.
func TestDocsSiteAccessible(t *testing.T) {
	slowtest.Skip(t, "builds the site of the documentation and shows pages in a browser")
	t.Parallel()
	browser := systemtest.OpenSharedBrowser(t)
	dir := filepath.Join(t.TempDir(), "site")
	build := exec.Command("go", "run", "-C", "internal/tools", "./site", "-out", dir)
	build.Dir, build.Env = systemtest.RepositoryDir(), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the site: %v\n%s", err, out)
	}
	server := httptest.NewServer(http.StripPrefix("/below/a/path", http.FileServer(http.Dir(dir))))
	defer server.Close()

	for name, address := range map[string]string{"server": server.URL + "/below/a/path", "folder": "file://" + dir} {
		t.Run(name, func(t *testing.T) {
			p := browser.ForSubtest(t).OpenTab(address, "/index.html")
			for _, path := range []string{"/index.html", "/how-to/run.html", "/reference/exec.html", "/reference/cli.html", "/repository/SECURITY.html", "/repository/sdk/examples/notify/index.html"} {
				p.OpenPath(path)
				for colours, isDark := range map[string]bool{"light": false, "dark": true} {
					p.PreferColours(isDark)
					for _, width := range []int64{1280, 400} {
						p.SetViewportSize(width, 800)
						p.OpenPath(path) // the list of pages is closed if the page is loaded on a phone
						for _, problem := range systemtest.Eval[[]string](p, accessibilityProblems) {
							t.Errorf("%s, %d pixels, %s: %s", path, width, colours, problem)
						}
						if scroll := systemtest.Eval[int64](p, "document.documentElement.scrollWidth"); scroll > width {
							t.Errorf("%s is %d pixels wide on a screen of %d", path, scroll, width)
						}
						p.ScreenshotIfEnabled(fmt.Sprintf("site-%s-%s-%d-%s", name, strings.TrimSuffix(filepath.Base(path), ".html"), width, colours))
					}
				}
			}
			// A key of the browser's protocol is typed even if the page prevents it, other than a key of a keyboard.
			if isTyped := systemtest.Eval[bool](p, `document.dispatchEvent(new KeyboardEvent("keydown", { key: "/", cancelable: true }))`); isTyped {
				t.Error("the key / is typed into the search")
			}
			p.WaitFor(`document.activeElement.id === "search"`)
			p.PressKeys("upgrade")
			p.WaitText("#results a", "Install, upgrade, remove › Upgrade")
			p.ScreenshotIfEnabled("site-" + name + "-search")
			p.PressKeys("\r")
			p.WaitText("h1", "Install, upgrade, remove")
			p.WaitFor(`location.hash === "#upgrade"`)
		})
	}
}
