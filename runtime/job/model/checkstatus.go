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

// Statuses of a check. Clients of Nomad match these texts.
const (
	CheckPending = "pending"
	CheckSuccess = "success"
	CheckFailure = "failure"
)

// ServiceIDPrefix returns the start of the ids of the registrations of a task, or of the group if task is empty.
func ServiceIDPrefix(allocID, task string) string {
	return "_nomad-task-" + allocID + "-" + cmp.Or(task, "group") + "-"
}

// CheckFailureText describes the result of a failed check. If a server has answered, the text has the status of its
// response, because the body alone can look like the body of a success, and the first line of text in the body.
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

// markupPattern matches what a browser does not show, also if it is cut off.
var markupPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)<script\b.*?(</script\s*>|\z)|<style\b.*?(</style\s*>|\z)|<!--.*?(-->|\z)|<[^>]*(>|\z)`)
})

// firstTextLine returns the first line of a body that is not blank. Of HTML and XML it returns the text alone.
func firstTextLine(body string) string {
	body = strings.TrimSpace(body)
	if strings.HasPrefix(body, "<") {
		body = strings.TrimSpace(html.UnescapeString(markupPattern().ReplaceAllString(body, "\n")))
	}
	line, _, _ := strings.Cut(body, "\n")
	return strings.TrimSpace(line)
}
