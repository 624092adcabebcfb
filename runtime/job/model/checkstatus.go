package model

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

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

// CheckFailureText describes the result of a failed check. If a server has answered, the text has the
// status of its response, because the body alone can look like the body of a success.
func CheckFailureText(s *api.AllocCheckStatus) string {
	if s.StatusCode == 0 {
		return s.Output
	}
	text := strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", s.StatusCode, http.StatusText(s.StatusCode)))
	if body := strings.TrimSpace(s.Output); body != "" {
		text += ": " + body
	}
	return text
}
