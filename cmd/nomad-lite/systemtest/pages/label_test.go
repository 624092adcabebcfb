package pages

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// The label of the configuration is at the top of each page, with its colours.
func TestUILabel(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestLabel checks the text of the page")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false, `ui {
  label {
    text             = "Staging & <b>test</b>"
    background_color = "rgb(1, 2, 3)"
    text_color       = "rgb(4, 5, 6)"
  }
}
`)
	p := systemtest.OpenSharedBrowser(t).OpenTab(s.Address, "/ui/jobs")
	p.WaitText("h1", "Jobs")
	p.WaitText("#label", "Staging & <b>test</b>")
	p.WaitFor(`getComputedStyle(document.querySelector("#label")).backgroundColor === "rgb(1, 2, 3)" && getComputedStyle(document.querySelector("#label")).color === "rgb(4, 5, 6)"`)
}
