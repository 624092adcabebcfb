package model

import (
	"cmp"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Check statuses. Nomad clients match these texts.
const (
	CheckPending = "pending"
	CheckSuccess = "success"
	CheckFailure = "failure"
)

// ServiceIDPrefix returns the prefix of registration IDs for a task, or for the group if task is empty.
func ServiceIDPrefix(allocID, task string) string {
	return "_nomad-task-" + allocID + "-" + cmp.Or(task, "group") + "-"
}

// CheckFailureText describes a failed check's result. If a server has answered, the text has the response status, because the
// body alone can look like a success, and the body's first line of text.
func CheckFailureText(s *api.AllocCheckStatus) string {
	if s.StatusCode == 0 {
		return s.Output
	}
	text := strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", s.StatusCode, http.StatusText(s.StatusCode)))
	if line := firstTextLine(s.Output); line != "" && !strings.HasSuffix(text, line) {
		text += ": " + line
	}
	return text
}

// markupPattern matches markup a browser does not show, also if it is cut off.
var markupPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)<script\b.*?(</script\s*>|\z)|<style\b.*?(</style\s*>|\z)|<!--.*?(-->|\z)|<[^>]*(>|\z)`)
})

// firstTextLine returns a body's first non-blank line. HTML and XML are reduced to their text.
func firstTextLine(body string) string {
	body = strings.TrimSpace(body)
	if strings.HasPrefix(body, "<") {
		body = strings.TrimSpace(html.UnescapeString(markupPattern().ReplaceAllString(body, "\n")))
	}
	line, _, _ := strings.Cut(body, "\n")
	return strings.TrimSpace(line)
}
